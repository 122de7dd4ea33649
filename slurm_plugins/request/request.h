/* SPDX-License-Identifier: Apache-2.0 */
/* A request as Slurm hands it over: what it asks for, by whom, and with which of our flags. */
#pragma once

#include "reply/reply.h"
#include "common/slurm_api.h"
#include "text/limits.h"
#include "text/text.h"
#include "text/tres.h"

/* A flag of ours as the user gave it; "" for one without a value, NULL for one not given. */
struct flag_values {
	char *value[16]; /* in the order of berth_options */
	bool any;
};

/* false: *wrong names a flag whose value is not right (its index), or -1: out of memory. */
bool flags_read(const job_desc_msg_t *job, struct flag_values *flags, int *wrong);
void flags_free(struct flag_values *flags);
/* NULL: not given. */
const char *flags_value(const struct flag_values *flags, const char *name);
/* The id of the pre-flight that it waits for first, or "run": it is one itself; NULL: neither. */
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
/*
 * A field that is larger than any honest one, as "it lists more than 64 partitions"; `endless`: so
 * large that Slurm refuses it, and it is not read under slurmctld's locks. NULL: none.
 */
const char *request_too_large(const job_desc_msg_t *job, bool endless);
/* Does the user want to read the job's id alone (--parsable)? */
bool request_is_quiet(const job_desc_msg_t *job);
/* The request as wire text. */
void request_write(const job_desc_msg_t *job, uint32_t submit_uid, const char *nonce,
		   const struct flag_values *flags, const struct reply_expected *expected,
		   struct text *out);
/* Options by which Slurm alone can choose nodes, as users write them: "--contiguous,--tmp". */
void request_slurms_own(const job_desc_msg_t *job, struct text *out);
/*
 * Could a pin that is made from Slurm's record and these texts alone break it? A record does not
 * tell all that was asked, nor how srun will ask for its step.
 */
bool request_says_more(const job_desc_msg_t *job);
/* "tres_per_job:gres/gpu:2;..." for the segment's key `asked`. */
void request_asked(const job_desc_msg_t *job, struct text *out);

/* slurmctld's own; no other plugin is to know what is in it. */
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
