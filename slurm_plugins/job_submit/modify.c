/* SPDX-License-Identifier: Apache-2.0 */
/* Which changes of a waiting job would break its pin, or free it from what holds it. */
#include "job_submit/job_submit.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "berthd/client.h"
#include "berthd/recent.h"
#include "common/messages.h"
#include "config/counted.h"
#include "job_submit/ask.h"
#include "pin/pinned.h"

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
#define NUMBER_OF(change) ((change)->step_id.job_id)
#else
#define NUMBER_OF(change) ((change)->job_id)
#endif

/* A change carries only what it changes. An empty text is a change too: it clears the field. */
bool change_touches_gpus(const job_desc_msg_t *change)
{
	return change->tres_per_job || change->tres_per_node || change->tres_per_socket ||
	       change->tres_per_task;
}

bool change_touches_request(const job_desc_msg_t *change)
{
	bool texts = change->req_nodes || change_touches_gpus(change) || change->cpus_per_tres ||
		     change->mem_per_tres;
	bool counts = change->min_nodes != NO_VAL || change->max_nodes != NO_VAL ||
		      change->min_cpus != NO_VAL || change->max_cpus != NO_VAL ||
		      change->num_tasks != NO_VAL || change->cpus_per_task != NO_VAL16 ||
		      change->pn_min_cpus != NO_VAL16 || change->pn_min_memory != NO_VAL64 ||
		      change->ntasks_per_node != NO_VAL16 || change->ntasks_per_tres != NO_VAL16;

	return texts || counts;
}

static bool touches_place(const job_desc_msg_t *change)
{
	return change_touches_request(change) || change->extra;
}

typedef char *(*slurm_formatter)(const char *format, va_list arguments);

static char *formatted(slurm_formatter formatter, const char *format, ...)
{
	char *made;
	va_list arguments;

	va_start(arguments, format);
	made = formatter(format, arguments);
	va_end(arguments);
	return made;
}

/*
 * A record has no public layout, but Slurm's log formatter writes a record's own id. What the
 * change itself says is a way around for the day that it is gone: it may name an array where one
 * task is meant.
 */
struct listed change_look_up(const job_desc_msg_t *change, const job_record_t *record)
{
	const char *path = hook_config()->pinned_file;
	struct listed job = {0};
	slurm_formatter formatter;

	*(void **)&formatter = dlsym(RTLD_DEFAULT, "vxstrfmt");
	if (formatter) {
		char *name = formatted(formatter, "%pJ", record);

		job.id = name ? pinned_record_id(name) : 0;
		job.array = name ? pinned_array_id(name) : 0;
		slurm_xfree((void **)&name);
	}
	if (!job.id && change->job_id_str) {
		job.id = pinned_record_id(change->job_id_str);
		job.array = pinned_array_id(change->job_id_str);
	}
	if (!job.id)
		job.id = NUMBER_OF(change);
	if (!*path)
		return job;
	job.kinds = pinned_kinds(path, job.id);
	/* A change of one task makes a record of its own, which no list can name yet. */
	if (!job.kinds && job.array && job.array != job.id)
		job.kinds = pinned_kinds(path, job.array) & ~LISTED_PINNED;
	return job;
}

/* The job as the user called it. */
static void name_job(const job_desc_msg_t *change, uint32_t id, char *name, size_t size)
{
	if (change->job_id_str)
		snprintf(name, size, "%s", change->job_id_str);
	else
		snprintf(name, size, "%" PRIu32, id);
}

static const char pinned_sentence[] =
    "berth: job %s has a planned place, so its node list, its Extra and how many nodes, GPUs, "
    "CPUs, tasks and how much memory it asks for cannot change while it waits; cancel it and "
    "submit it again, or ask your administrator" BERTH_ID(820);
static const char parked_sentence[] =
    "berth: job %s is a guest that waits for a seat, so its start time, its node list, its Extra "
    "and what it asks for cannot change; it starts by itself as soon as a seat is free. To have it "
    "otherwise cancel it and submit it again" BERTH_ID(821);
static const char shares_sentence[] =
    "berth: job %s shares a GPU, and its Extra tells the node how; it cannot change while the job "
    "runs" BERTH_ID(822);
static const char just_shared_sentence[] =
    "berth: the Extra, the GPUs and the partition of job %s cannot change yet: you submitted a job "
    "that shares a GPU a moment ago, and berthd has not listed it; try again in half a "
    "minute" BERTH_ID(823);
static const char recent_sentence[] =
    "berth: the start time of job %s cannot change yet: you submitted a guest a moment ago, and "
    "berthd has not listed it; try again in half a minute" BERTH_ID(824);

static const char counted_sentence[] =
    "berth: the licences of job %s count its GPUs, so neither can change; cancel it and submit it "
    "again, or ask your administrator" BERTH_ID(825);

static const char part_sentence[] =
    "berth: job %s has a part of a GPU or a seat, so it cannot move to a partition that Berth does "
    "not look at; cancel it and submit it there" BERTH_ID(826);
static const char tier_sentence[] =
    "berth: job %s is of a tier (--gpu-tier) that this site does not allow everywhere, so its "
    "partition, QOS and account, and that it has no GPUs, cannot change; cancel it and submit it "
    "again" BERTH_ID(816);
static const char just_tier_sentence[] =
    "berth: the partition, QOS, account and GPUs of job %s cannot change yet: you submitted a job "
    "a moment ago, and berthd has not listed it; try again in half a minute" BERTH_ID(827);

static const char stays_sentence[] =
    "berth: job %s is a guest, which has to leave its GPU when the owner comes, and is run again "
    "then; leave Requeue as it is, or cancel the job and submit it with another tier" BERTH_ID(836);

static const char unchecked_sentence[] =
    "berth: job %s asks for GPUs in a partition that Berth does not look at, so it cannot move to "
    "another; cancel it and submit it there" BERTH_ID(826);
static const char just_unchecked_sentence[] =
    "berth: job %s cannot move to this partition yet: "
    "you asked for GPUs in one that Berth does not "
    "look at a moment ago; try again in half a minute" BERTH_ID(827);

/* Also a moment that is past, and now: a guest without a seat would start on whole GPUs. */
static bool touches_start(const job_desc_msg_t *change)
{
	return change->begin_time != 0;
}

/* Without licences that count GPUs no user's change of licences is ours to look at. */
static bool touches_licenses(const job_desc_msg_t *change)
{
	return change->licenses && counted_model(slurm_conf.licenses, NULL);
}

/* A job that may not be put back into the queue could not be sent away. */
static bool forbids_requeue(const job_desc_msg_t *change)
{
	return change->requeue == 0;
}

static bool names_partition(const job_desc_msg_t *change)
{
	return change->partition && *change->partition;
}

bool change_matters(const job_desc_msg_t *change)
{
	return touches_place(change) || touches_start(change) || names_partition(change) ||
	       touches_licenses(change) || change->qos || change->account || change->exc_nodes ||
	       forbids_requeue(change);
}

/* To one of Berth's own. */
static bool comes_here(const job_desc_msg_t *change)
{
	return names_partition(change) && !config_skips(hook_config(), change->partition);
}

/* Why a job may not be changed so, as a sentence about it; NULL: it may. */
static const char *objection(const job_desc_msg_t *change, uint32_t kinds,
			     const struct asked *asked, uint32_t uid)
{
	bool place = touches_place(change), start = touches_start(change);

	if ((kinds & LISTED_PARKED) && (place || start))
		return parked_sentence;
	if (forbids_requeue(change) &&
	    ((kinds & LISTED_GUEST) || (!kinds && recent_has(uid, RECENT_SHARED, monotonic_us()))))
		return stays_sentence;
	if ((kinds & LISTED_PINNED) && place && !asked->from && !asked->changed)
		return pinned_sentence;
	if ((kinds & LISTED_SHARES) && change->extra)
		return shares_sentence;
	if (!kinds && start && recent_has(uid, RECENT_GUEST, monotonic_us()))
		return recent_sentence;
	if ((kinds & LISTED_COUNTED) && (touches_licenses(change) || change_touches_gpus(change)))
		return counted_sentence;
	if (!kinds && touches_licenses(change) && recent_has(uid, RECENT_COUNTED, monotonic_us()))
		return counted_sentence;
	if ((kinds & LISTED_UNCHECKED) && comes_here(change))
		return unchecked_sentence;
	/* What a planned job asks for cannot have changed. */
	if (!(kinds & (LISTED_PINNED | LISTED_PARKED)) && comes_here(change) &&
	    recent_has(uid, RECENT_UNCHECKED, monotonic_us()))
		return just_unchecked_sentence;
	return NULL;
}

static bool told(const char *why, const job_desc_msg_t *change, const struct listed *job,
		 char message[MESSAGE_MAX + 1])
{
	char name[64];

	if (!why)
		return false;
	name_job(change, job->id, name, sizeof(name));
	snprintf(message, MESSAGE_MAX + 1, why, name);
	return true;
}

bool let_change_unpin(job_desc_msg_t *change, const struct listed *job)
{
	if (!(job->kinds & LISTED_PINNED) || !touches_place(change))
		return false;
	/* Nodes that the user names replace those of the plan. */
	if (!change->req_nodes)
		set_string(&change->req_nodes, "");
	return true;
}

bool change_refused(const job_desc_msg_t *change, const struct listed *job,
		    const struct asked *asked, uint32_t uid, char message[MESSAGE_MAX + 1])
{
	return told(objection(change, job->kinds & ~LISTED_RULES, asked, uid), change, job,
		    message);
}

static bool leaves(const job_desc_msg_t *change)
{
	return names_partition(change) && config_skips(hook_config(), change->partition);
}

/* Could a tier that is allowed where the job is, be one that is not after this change? */
static bool escapes(const job_desc_msg_t *change, uint32_t kinds)
{
	return ((kinds & LISTED_BY_PARTITION) && comes_here(change)) ||
	       /* With another account Slurm may choose another QOS. */
	       ((kinds & LISTED_BY_QOS) && (change->qos || change->account)) ||
	       ((kinds & LISTED_NO_GPUS) && change_touches_gpus(change));
}

bool change_breaks_rule(const job_desc_msg_t *change, const struct listed *job, uint32_t uid,
			char message[MESSAGE_MAX + 1])
{
	const char *why = escapes(change, job->kinds) ? tier_sentence : NULL;

	if ((job->kinds & LISTED_PART) && leaves(change))
		why = part_sentence;
	if (!job->kinds && recent_has(uid, RECENT_ANY, monotonic_us()) &&
	    escapes(change, pinned_kinds(hook_config()->pinned_file, 0)))
		why = just_tier_sentence;
	return told(why, change, job, message);
}

bool change_too_early(const job_desc_msg_t *change, const struct listed *job, uint32_t uid,
		      char message[MESSAGE_MAX + 1])
{
	bool early = !(job->kinds & ~LISTED_RULES) &&
		     (change->extra || change_touches_gpus(change) || leaves(change)) &&
		     recent_has(uid, RECENT_SHARED, monotonic_us());

	return told(early ? just_shared_sentence : NULL, change, job, message);
}

/* Where the job is now no plugin can see: a job that berthd has not listed counts as one of ours.
 */
bool change_is_elsewhere(const job_desc_msg_t *change, const struct listed *job)
{
	if (names_partition(change))
		return config_skips(hook_config(), change->partition);
	return (job->kinds & LISTED_ELSEWHERE) != 0;
}
