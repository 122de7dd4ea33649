/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the job_submit plugin share. */
#pragma once

#include "reply/reply.h"
#include "common/slurm_api.h"
#include "config/config.h"
#include "request/request.h"
#include "text/limits.h"
#include "text/text.h"
#include "text/tres.h"

/* Take model names out of the request and its environment; see formats.md, section 5. */
void models_strip(job_desc_msg_t *job);
/* Ask for the node feature `model` beside the user's own constraint. */
enum feature_join models_require(job_desc_msg_t *job, const char *model);
/* Count the GPUs of a request that names their model; a place will say so for all. */
void models_count(job_desc_msg_t *job, const char *model);

/*
 * On the plain layout: asks for the GPUs of one node as GPUs of the job, for which Slurm keeps the
 * best linked ones. Nothing is changed where that could make another job of it. Each node
 * that it may get has `node_gpus` GPUs at least: asked by job for more than a node has, it would
 * wait for ever on 26.05, where Slurm refuses a request by node.
 */
void ask_for_linked_gpus(job_desc_msg_t *job, uint64_t node_gpus);
/* A change that asks for GPUs by node replaces those that were asked for by job. */
void let_change_replace(job_desc_msg_t *change);
/* To a list of Slurm's, such as an environment. false: out of memory. */
bool add_word(char ***list, uint32_t *count, const char *word);
/* Has the script's environment say that a seat was asked for. */
void apply_seat_asked(job_desc_msg_t *job);
/*
 * Fill in a site's CPUs for each GPU where the user named no CPUs; for a share of a GPU the same
 * share of them, rounded up.
 */
void apply_default_cpus(job_desc_msg_t *job, uint32_t per_gpu, uint32_t share);
/*
 * Pin the job, or, where it is planned later, ask for its GPUs in the one form that every pin can
 * replace. false: Slurm would not take a text so long, or out of memory; the job is unchanged.
 */
bool apply_gpus(job_desc_msg_t *job, const struct reply *reply);
/* Replace the licences that count a job's GPUs by model. */
void apply_licenses(job_desc_msg_t *job, const char *ours);
/* What a job that is left to Slurm gets: nodes on the plain layout, segments. false: as above. */
bool apply_nodes(job_desc_msg_t *job, const struct reply *reply);
/* Write a segment's body into the job's admin_comment. false: out of memory, or too long. */
bool apply_segment(job_desc_msg_t *job, const char *body);

/* slurmctld's own; no other plugin is to know what is in it. */
typedef struct job_record job_record_t;

/* A job that is to be changed, as far as berthd's list knows it. */
struct listed {
	uint32_t id;	/* the record's own */
	uint32_t array; /* of a task; 0: it is none */
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
/* What berthd has kept of the request of a job that waits (formats.md, section 1.5). */
struct asked {
	char words[SEGMENT_BODY_MAX];
	uint32_t from; /* the job, or its array, whose words they are; 0: there are none */
	bool changed;  /* its user has changed it already, and berthd has not seen that yet */
};

/* Takes back what was added to this change for another record of the same job, before all else. */
void change_restore(job_desc_msg_t *change);
void change_look_up_asked(const struct listed *job, struct asked *asked);
/* After everything else: beside a change of the request, the rest of it as its user wrote it. */
void change_complete(job_desc_msg_t *change, const struct listed *job, struct asked *asked,
		     bool request);
/* berthd writes no pin over `nodes` that a user has excluded since it read the job. */
void change_mark_excluded(const struct listed *job, const char *nodes);
/* Nor over what an administrator has asked for instead. */
void change_mark(const struct listed *job);
bool change_touches_request(const job_desc_msg_t *change);
bool change_touches_gpus(const job_desc_msg_t *change);
/*
 * Would this change by user `uid` undo the pin that berthd holds on the job, start a guest without
 * a seat, or bring a job to Berth's partitions that was never looked at? Then *message is for the
 * user.
 */
bool change_refused(const job_desc_msg_t *change, const struct listed *job,
		    const struct asked *asked, uint32_t uid, char message[MESSAGE_MAX + 1]);
/*
 * Would this change take a job with a part of a GPU to a partition that Berth does not touch, or
 * give a job a tier where the site does not allow it? Then as above.
 */
bool change_breaks_rule(const job_desc_msg_t *change, const struct listed *job, uint32_t uid,
			char message[MESSAGE_MAX + 1]);
/* Could it be a job that shares a GPU and that the list does not name yet? Asked of changes that
 * nothing else speaks against. */
bool change_too_early(const job_desc_msg_t *change, const struct listed *job, uint32_t uid,
		      char message[MESSAGE_MAX + 1]);
/* Is the job, after this change, in partitions that Berth does not touch? */
bool change_is_elsewhere(const job_desc_msg_t *change, const struct listed *job);
