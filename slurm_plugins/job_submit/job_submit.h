/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the job_submit plugin share. */
#ifndef BERTH_JOB_SUBMIT_H
#define BERTH_JOB_SUBMIT_H

#include "common/config.h"
#include "common/limits.h"
#include "berthd/reply.h"
#include "common/slurm_api.h"
#include "common/text.h"
#include "common/tres.h"

/* A flag of ours as the user gave it; "" for one without a value, NULL for one not given. */
struct flag_values {
	char *value[16]; /* in the order of berth_options */
	bool any;
};

/* false: *wrong names a flag whose value is not right (its index), or -1: out of memory. */
bool flags_read(const job_desc_msg_t *job, struct flag_values *flags, int *wrong);
void flags_free(struct flag_values *flags);
/* The id of the job's pre-flight, or "run" where it is one itself; NULL: neither. */
const char *request_preflight(const job_desc_msg_t *job);
/* --gpu-share in percent; 0: whole GPUs are wanted. */
uint32_t flags_share(const struct flag_values *flags);

bool flags_ask_seat(const struct flag_values *flags);
/* Does the job want GPUs whole, rather than a share or a seat? */
bool flags_own_gpus(const struct flag_values *flags);

/*
 * Everything that the fields of GPU requests say together: all in which Slurm reads GRES.
 * tres_bind, tres_freq and licenses give a job none.
 */
void request_scan(const job_desc_msg_t *job, struct tres_found *found);
/* How many GPUs the job asks for; see struct reply_expected. */
void request_count_gpus(const job_desc_msg_t *job, struct reply_expected *expected);
/* The number of nodes, or 0 where it is Slurm's to choose. */
uint32_t request_nodes(const job_desc_msg_t *job);
/* sbatch, rather than salloc or an srun that makes its own allocation. */
bool request_is_batch(const job_desc_msg_t *job);
/* It has no script, and its steps come from later sruns. */
bool request_is_salloc(const job_desc_msg_t *job);
/* Is any GPU asked for? --ntasks-per-gpu alone asks for GPUs too. */
bool request_wants_gpus(const job_desc_msg_t *job, const struct tres_found *found);
/* --gpu-share alone means one GPU: ask for it. false: out of memory. */
bool request_one_gpu(job_desc_msg_t *job);
/* Whose job it is: root may submit one for another. */
static inline uint32_t request_owner(const job_desc_msg_t *job, uint32_t submit_uid)
{
	return job->user_id == NO_VAL ? submit_uid : job->user_id;
}
/* Does it only ask when it would start? */
bool request_is_test(const job_desc_msg_t *job);
/* A field that is larger than any honest one, as "it lists more than 64 partitions"; NULL: none. */
const char *request_too_large(const job_desc_msg_t *job);
/* Does who submits want to read the job's id alone (--parsable), or nothing (-Q)? */
bool request_is_quiet(const job_desc_msg_t *job);
/* The request as wire text. */
void request_write(const job_desc_msg_t *job, uint32_t submit_uid, const char *nonce,
		   const struct flag_values *flags, const struct reply_expected *expected,
		   struct text *out);
/* Options by which Slurm alone can choose nodes, as users write them: "--contiguous,--tmp". */
void request_slurms_own(const job_desc_msg_t *job, struct text *out);
/* "tres_per_job:gres/gpu:2;..." for the segment's key `asked`. */
void request_asked(const job_desc_msg_t *job, struct text *out);

/* slurmctld's own; what is in it is nobody else's to know. */
typedef struct part_record part_record_t;

void admitted_init(void);

/*
 * Of a job that lists several partitions, those whose AllowGroups admit user `uid`: "gpu,debug".
 * false: it lists one, this Slurm does not tell, or out of memory.
 */
bool admitted_partitions(const job_desc_msg_t *job, uint32_t uid, struct text *out);

/* Is user `uid` an operator in Slurm's accounting? false: this Slurm does not tell. */
bool admitted_operator(uint32_t uid);

/* Around each submission, for what follows. */
void component_begin(const job_desc_msg_t *job);
void component_end(const job_desc_msg_t *job);
/* The nodes of the components before this one of a heterogeneous job; "" where there are none. */
const char *components_nodes(const job_desc_msg_t *job);

/* Take model names out of the request and its environment; see docs/formats.md section 5. */
void models_strip(job_desc_msg_t *job);
/* Ask for the node feature `model` beside the user's own constraint. */
enum feature_join models_require(job_desc_msg_t *job, const char *model);
/* Count the GPUs of a request that names their model; a place will say so for all. */
void models_count(job_desc_msg_t *job, const char *model);

/*
 * Fill in a site's CPUs for each GPU where the user named no CPUs; for a share of a GPU the same
 * share of them, rounded up.
 */
/*
 * On the plain layout: asks for the GPUs of one node as GPUs of the job, for which Slurm keeps the
 * best linked ones. Nothing is changed where that could make another job of it. Each node
 * that it may get has `node_gpus` GPUs at least: asked by job for more than a node has, it would
 * wait for ever on 26.05, where Slurm refuses a request by node.
 */
void ask_for_linked_gpus(job_desc_msg_t *job, uint64_t node_gpus);
/* A change that asks for GPUs by node replaces those that were asked for by job. */
void let_change_replace(job_desc_msg_t *change);
/* Has the script's environment say that a seat was asked for. */
void apply_seat_asked(job_desc_msg_t *job);
void apply_default_cpus(job_desc_msg_t *job, uint32_t per_gpu, uint32_t share);
/*
 * Pin the job, or, where it is planned later, ask for its GPUs in the one form that every pin can
 * replace. false: Slurm would not take a text so long, or out of memory; the job is unchanged.
 */
bool apply_gpus(job_desc_msg_t *job, const struct reply *reply);
/* Replace the licences that count a job's GPUs by model. */
void apply_licenses(job_desc_msg_t *job, const char *ours);
/* On the plain layout: the nodes of a reply, if it has any, and its segment. false: as above. */
bool apply_nodes(job_desc_msg_t *job, const struct reply *reply);
/* Write a segment's body into the job's admin_comment. false: out of memory, or too long. */
bool apply_segment(job_desc_msg_t *job, const char *body);

/* slurmctld's own; what is in it is nobody else's to know. */
typedef struct job_record job_record_t;

/* A job that is to be changed, as far as berthd's list knows it. */
struct listed {
	uint32_t id;	/* the record's own */
	uint32_t kinds; /* LISTED_...; 0: not listed, or not yet */
};

/* Does this change anything that the list has to be asked for? */
bool change_matters(const job_desc_msg_t *change);
struct listed change_look_up(const job_desc_msg_t *change, const job_record_t *record);
/*
 * On the plain layout: a user's change of what a planned job asks for takes its nodes from it, and
 * the change is made as on plain Slurm. true: it was such a change.
 */
bool let_change_unpin(job_desc_msg_t *change, const struct listed *job);
/*
 * Would this change by user `uid` undo the pin that berthd holds on the job, start a guest without
 * a seat, or bring a job to Berth's partitions that was never looked at? Then *message is for the
 * user.
 */
bool change_refused(const job_desc_msg_t *change, const struct listed *job, uint32_t uid,
		    char message[MESSAGE_MAX + 1]);
/* Could it be a job that shares a GPU and that the list does not name yet? Asked of changes that
 * nothing else speaks against. */
bool change_too_early(const job_desc_msg_t *change, const struct listed *job, uint32_t uid,
		      char message[MESSAGE_MAX + 1]);
/* Is the job, after this change, in partitions that Berth does not touch? */
bool change_is_elsewhere(const job_desc_msg_t *change, const struct listed *job);

#endif
