/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job_submit/berth: what slurmctld calls for each submission and each change of a job. It holds
 * slurmctld's locks meanwhile, so nothing here waits beyond one deadline, and nothing that berthd
 * says is believed unchecked.
 */
#include "job_submit/job_submit.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "berthd/client.h"
#include "berthd/recent.h"
#include "common/messages.h"
#include "common/needed.h"
#include "config/counted.h"
#include "config/options.h"
#include "job_submit/ask.h"
#include "pin/segment.h"

const char plugin_name[] = "Berth job_submit plugin";
const char plugin_type[] = "job_submit/berth";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;

int init(void);
int fini(void);
int job_submit(job_desc_msg_t *job, uint32_t submit_uid, char **err_msg);
int job_modify(job_desc_msg_t *job, job_record_t *record, uint32_t submit_uid, char **err_msg);

static const struct needed needed[] = {
    NEEDED(slurm_conf),	 NEEDED(slurm_error),	  NEEDED(slurm_info),
    NEEDED(slurm_xfree), NEEDED(slurm_xrecalloc), NEEDED(slurm_xstrdup),
};
/* Does this Slurm lack one? Then each job is Slurm's alone. */
static bool idle;

int init(void)
{
	idle = !slurm_has(needed, sizeof(needed) / sizeof(*needed));
	if (idle)
		return SLURM_SUCCESS;
	ask_init();
	admitted_init();
	return SLURM_SUCCESS;
}

int fini(void)
{
	if (!idle)
		ask_fini();
	return SLURM_SUCCESS;
}

/*
 * May this user write what is Berth's own? slurmctld runs as SlurmUser; an operator may change any
 * job in Slurm. Slurm's lock of users is taken for the answer, so ask last.
 */
static bool trusted(uint32_t uid)
{
	return uid == 0 || uid == geteuid() || admitted_operator(uid);
}

/* Each plugin of a chain has its say: what is there stays, and a newline separates. */
static void tell(char **err_msg, const char *message)
{
	struct text whole;

	text_init(&whole, FOREIGN_TEXT_MAX);
	if (*err_msg) {
		text_add(&whole, *err_msg);
		text_add(&whole, "\n");
	}
	text_add(&whole, message);
	if (!whole.failed)
		set_string(err_msg, text_str(&whole));
	text_free(&whole);
}

static int refuse(char **err_msg, int code, const char *message)
{
	tell(err_msg, message);
	return code;
}

static int check_texts(const job_desc_msg_t *job, uint32_t uid, char **err_msg)
{
	const char *endless = request_too_large(job, true);
	char message[MESSAGE_MAX + 1];

	if (endless) {
		snprintf(message, sizeof(message), "berth: %s; make it shorter" BERTH_ID(801),
			 endless);
		return refuse(err_msg, ESLURM_PATHNAME_TOO_LONG, message);
	}
	if (!segment_claimed(job->extra) || trusted(uid))
		return SLURM_SUCCESS;
	return refuse(err_msg, ESLURM_ACCESS_DENIED,
		      "berth: text with \"[berth/\" in Extra is written by Berth alone; "
		      "leave it out" BERTH_ID(802));
}

static bool layout_is_plain(void)
{
	return hook_config()->layout == LAYOUT_PLAIN;
}

static int check_gres(const struct tres_found *found, uint32_t uid, char **err_msg)
{
	/* There all that Slurm takes is a request like any other. */
	if (layout_is_plain())
		return SLURM_SUCCESS;
	if (found->several_models)
		return refuse(
		    err_msg, ESLURM_INVALID_GRES,
		    "berth: one job can have GPUs of one model only; ask for one model, or "
		    "submit a heterogeneous job" BERTH_ID(803));
	if (found->bad_model)
		return refuse(err_msg, ESLURM_INVALID_GRES,
			      "berth: a GPU model is a word of letters, digits, '.', '_' and '-'; "
			      "see the features that sinfo -o %f lists" BERTH_ID(804));
	if (found->bad_count)
		return refuse(err_msg, ESLURM_INVALID_GRES,
			      "berth: a number of GPUs is digits alone, such as gpu:2 or "
			      "gpu:MODEL:2; say how many GPUs the job needs" BERTH_ID(805));
	if (!(found->hidden || found->position_type || found->shared) || trusted(uid))
		return SLURM_SUCCESS;
	if (found->hidden)
		return refuse(
		    err_msg, ESLURM_INVALID_GRES,
		    "berth: GPUs, shards and seats are asked for as gres/NAME at the "
		    "start of an element, with nothing before it; write gres/gpu:N" BERTH_ID(806));
	if (found->position_type)
		return refuse(
		    err_msg, ESLURM_INVALID_GRES,
		    "berth: GPUs are not chosen by position (gpu:g0); ask for gpu:N or "
		    "gpu:MODEL:N, and use --locality for how they must be joined" BERTH_ID(807));
	if (found->shared)
		return refuse(err_msg, ESLURM_INVALID_GRES,
			      "berth: shard and seat are not asked for by hand; use --gpu-share or "
			      "--gpu-tier, in a partition that Berth looks at" BERTH_ID(808));
	return SLURM_SUCCESS;
}

/* One could take all that there are, and keep everybody else from these GPUs. Tasks may have
 * licences too: "license/berth_h100=4". */
static int check_licenses(const job_desc_msg_t *job, uint32_t uid, char **err_msg)
{
	bool by_task = job->tres_per_task && strcasestr(job->tres_per_task, "berth_");

	if (!(counted_named(job->licenses) || by_task) || trusted(uid))
		return SLURM_SUCCESS;
	return refuse(
	    err_msg, ESLURM_INVALID_LICENSES,
	    "berth: licences called berth_MODEL count GPUs by themselves and are not asked "
	    "for by hand; leave them out, and ask for gpu:MODEL:N" BERTH_ID(809));
}

static const char unclear_join[] =
    "berth: the GPU model cannot be added to this --constraint; ask for the GPUs without their "
    "model and put the model into the constraint yourself" BERTH_ID(810);

static int handle_models(job_desc_msg_t *job, struct tres_found *found, char **err_msg)
{
	/* A limit by model counts what is asked for. */
	if (layout_is_plain())
		return SLURM_SUCCESS;
	if (found->model[0] && models_require(job, found->model) != JOIN_OK)
		return refuse(err_msg, ESLURM_INVALID_FEATURE, unclear_join);
	models_strip(job);
	return SLURM_SUCCESS;
}

static int wrong_flag(int wrong, char **err_msg)
{
	char message[MESSAGE_MAX + 1];

	if (wrong < 0)
		return refuse(err_msg, ENOMEM,
			      "berth: slurmctld is out of memory; try again" BERTH_ID(811));
	snprintf(message, sizeof(message), "berth: --%s wants %s" BERTH_ID(401),
		 berth_options[wrong].name, berth_options[wrong].right);
	return refuse(err_msg, EINVAL, message);
}

static bool user_wants_messages(const job_desc_msg_t *job, const struct flag_values *flags)
{
	enum message_mode mode = hook_config()->message;
	bool wanted = mode == MESSAGE_ALWAYS || (mode == MESSAGE_FLAGS && flags->any);

	/* A user who asks for a place wants to read where, and no other; with -Q the client hides
	 * it. */
	if (flags->any && request_is_test(job))
		return true;
	/* What a script reads has to be what Slurm alone would say. */
	return wanted && !request_is_quiet(job);
}

/* The segment that the plugin writes on its own: what was asked for, and why berthd did not act. */
static void keep_request(job_desc_msg_t *job, const struct flag_values *flags, const char *why)
{
	struct text body, asked;

	text_init(&body, SEGMENT_BODY_MAX);
	text_init(&asked, SEGMENT_BODY_MAX);
	segment_add(&body, "state", "passed");
	request_asked(job, &asked);
	/* berthd may give it a place by this later. */
	if (asked.len && !asked.failed && !request_says_more(job))
		segment_add(&body, "asked", text_str(&asked));
	segment_add(&body, "why", why);
	if (request_preflight(job))
		segment_add(&body, "preflight", request_preflight(job));
	for (size_t i = 0; i < berth_option_count; i++) {
		char key[WIRE_KEY_MAX];

		if (!flags->value[i])
			continue;
		snprintf(key, sizeof(key), "f.%s", berth_options[i].name);
		segment_add(&body, key, flags->value[i]);
	}
	if (body.failed || !apply_segment(job, text_str(&body)))
		slurm_error("berth: a job's request could not be kept in its admin_comment: it is "
			    "longer than 4096 bytes, or slurmctld is out of memory" BERTH_ID(830));
	text_free(&body);
	text_free(&asked);
}

/* Flags are never dropped silently, least of all when berthd is not there to say so. */
static void tell_flags(char **err_msg, const struct flag_values *flags)
{
	for (size_t i = 0; i < berth_option_count; i++) {
		char message[MESSAGE_MAX + 1];

		/* sbatch has seen to it, or has said why not. */
		if (!flags->value[i] || !strcmp(berth_options[i].name, OPTION_PREFLIGHT))
			continue;
		snprintf(message, sizeof(message), "--%s: %s" BERTH_ID(812), berth_options[i].name,
			 strcmp(berth_options[i].name, OPTION_SHARE)
			     ? "not applied, berthd did not answer"
			     : "not applied, berthd did not answer: the job asks for whole GPUs");
		tell(err_msg, message);
	}
}

static int go_without(job_desc_msg_t *job, const struct flag_values *flags, char **err_msg)
{
	if (hook_config()->fail_closed)
		return refuse(
		    err_msg, ESLURM_SUBMISSIONS_DISABLED,
		    "berth: berthd does not answer, and this site takes no GPU job without "
		    "it; try again later or tell your administrator" BERTH_ID(813));
	keep_request(job, flags, "berthd did not answer" BERTH_ID(812));
	if (user_wants_messages(job, flags))
		tell_flags(err_msg, flags);
	return SLURM_SUCCESS;
}

static int leave_to_slurm(job_desc_msg_t *job, const struct flag_values *flags, const char *why,
			  char **err_msg)
{
	char message[MESSAGE_MAX + 32];

	keep_request(job, flags, why);
	snprintf(message, sizeof(message), "berth: left to Slurm: %s", why);
	if (user_wants_messages(job, flags))
		tell(err_msg, message);
	return SLURM_SUCCESS;
}

static bool applied(enum outcome outcome, job_desc_msg_t *job, const struct reply *reply)
{
	switch (outcome) {
	case OUTCOME_PLACE:
	case OUTCOME_LATER:
		return apply_gpus(job, reply);
	case OUTCOME_PASS:
		return apply_nodes(job, reply);
	default:
		return false;
	}
}

/* berthd was not asked: reading such a request would hold up everybody else's. */
static int leave_large(job_desc_msg_t *job, const struct flag_values *flags, char **err_msg)
{
	const char *why = request_too_large(job, false);
	char message[MESSAGE_MAX + 1];

	if (!why)
		why = "its request is longer than 65536 bytes";
	if (!hook_config()->fail_closed) {
		snprintf(message, sizeof(message), "%s" BERTH_ID(212), why);
		return leave_to_slurm(job, flags, message, err_msg);
	}
	/* Else a user who writes enough would have what this site gives to none. */
	snprintf(message, sizeof(message),
		 "berth: this site takes no GPU job that berthd has not seen, and berthd is not "
		 "asked for this one: %s; make it shorter" BERTH_ID(814),
		 why);
	return refuse(err_msg, ESLURM_SUBMISSIONS_DISABLED, message);
}

static int act_on(enum outcome outcome, job_desc_msg_t *job, uint32_t submit_uid,
		  const struct flag_values *flags, const struct reply *reply, char **err_msg)
{
	if (outcome == OUTCOME_REFUSE)
		return refuse(err_msg, ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE, reply->message);
	if (outcome == OUTCOME_LARGE)
		return leave_large(job, flags, err_msg);
	if (outcome > OUTCOME_REFUSE)
		return go_without(job, flags, err_msg);
	/* Slurm would refuse the whole job. */
	if (!applied(outcome, job, reply))
		return leave_to_slurm(
		    job, flags,
		    "what Berth would write into the job is longer than Slurm takes" BERTH_ID(212),
		    err_msg);
	if (outcome == OUTCOME_LATER && reply->guest)
		recent_note(request_owner(job, submit_uid), RECENT_GUEST, monotonic_us());
	if (outcome != OUTCOME_PASS && (reply->share || reply->guest || reply->way))
		recent_note(request_owner(job, submit_uid), RECENT_SHARED, monotonic_us());
	if (reply->message && *reply->message &&
	    (user_wants_messages(job, flags) || (reply->urgent && !request_is_quiet(job))))
		tell(err_msg, reply->message);
	return SLURM_SUCCESS;
}

static int submit_gpu_job(job_desc_msg_t *job, uint32_t submit_uid, const struct flag_values *flags,
			  char **err_msg)
{
	uint64_t started_us = monotonic_us();
	struct reply reply;
	enum outcome outcome = ask_berthd(job, submit_uid, flags, &reply);
	int rc = act_on(outcome, job, submit_uid, flags, &reply, err_msg);

	if (rc == SLURM_SUCCESS && flags_ask_seat(flags))
		apply_seat_asked(job);
	if (rc == SLURM_SUCCESS && layout_is_plain())
		ask_for_linked_gpus(job, outcome == OUTCOME_PASS ? reply.node_gpus : 0);
	ask_log(outcome, started_us, job, submit_uid);
	return rc;
}

static int submit_with_flags(job_desc_msg_t *job, uint32_t submit_uid,
			     const struct flag_values *flags, char **err_msg)
{
	uint32_t share = flags_share(flags);
	struct tres_found found;
	bool wants_gpus;
	int rc;

	request_scan(job, &found);
	rc = check_gres(&found, submit_uid, err_msg);
	if (rc != SLURM_SUCCESS)
		return rc;
	/* An administrator who names positions or seats has placed the job already; GPUs that only
	 * Slurm reads are Slurm's to place. */
	if (found.position_type || found.shared || found.hidden)
		return SLURM_SUCCESS;
	rc = handle_models(job, &found, err_msg);
	if (rc != SLURM_SUCCESS)
		return rc;
	wants_gpus = request_wants_gpus(job, &found);
	if (share && !wants_gpus)
		wants_gpus = request_one_gpu(job);
	if (wants_gpus) {
		apply_default_cpus(job, hook_config()->def_cpu_per_gpu, share);
		if (found.model[0] && flags_own_gpus(flags) && !layout_is_plain())
			models_count(job, found.model);
		if (counted_model(slurm_conf.licenses, NULL))
			recent_note(request_owner(job, submit_uid), RECENT_COUNTED, monotonic_us());
		return submit_gpu_job(job, submit_uid, flags, err_msg);
	}
	if (flags->any) {
		keep_request(job, flags, "no GPUs asked" BERTH_ID(202));
		if (user_wants_messages(job, flags))
			tell(err_msg, "berth: flags ignored: no GPUs asked" BERTH_ID(202));
	}
	return SLURM_SUCCESS;
}

/*
 * A job without -p goes to the default partition, whose name slurmctld exports; with a reservation
 * to that one's partition, which no plugin is told. NULL: it may be any.
 */
static const char *partitions_of(const job_desc_msg_t *job)
{
	char **default_name;

	if (job->partition && *job->partition)
		return job->partition;
	if (job->reservation && *job->reservation)
		return NULL;
	default_name = dlsym(RTLD_DEFAULT, "default_part_name");
	return default_name ? *default_name : NULL;
}

/* Only Berth asks for what is Berth's alone; where Berth does not look a shard is a GPU. */
static int check_own_gres(const job_desc_msg_t *job, uint32_t uid, char **err_msg)
{
	struct tres_found found;
	bool part;

	request_scan(job, &found);
	part = found.seat || (found.shared && !hook_config()->skipped_shards);
	if (!(part || found.hidden) || trusted(uid))
		return SLURM_SUCCESS;
	/* Of these alone: the rest is the partition's own matter. */
	found = (struct tres_found){.shared = part, .hidden = found.hidden};
	return check_gres(&found, uid, err_msg);
}

/* What was not checked must not come to Berth's partitions before berthd has seen it. */
static void note_unchecked(const job_desc_msg_t *job, uint32_t uid)
{
	struct tres_found found;

	request_scan(job, &found);
	if (request_wants_gpus(job, &found) || found.shared || found.hidden || found.bad_model ||
	    found.bad_count)
		recent_note(uid, RECENT_UNCHECKED, monotonic_us());
}

int job_submit(job_desc_msg_t *job, uint32_t submit_uid, char **err_msg)
{
	struct flag_values flags;
	int wrong, rc;

	if (idle)
		return SLURM_SUCCESS;
	/* Another cluster of a federation sends its users' jobs, and Slurm submits them as root. */
	if (submit_uid == 0 && job->fed_siblings_viable)
		submit_uid = request_owner(job, submit_uid);
	/* Before anything else: node scripts read Extra of each job, whatever its partition. */
	rc = check_texts(job, submit_uid, err_msg);
	component_begin(job);
	if (rc == SLURM_SUCCESS)
		rc = check_licenses(job, submit_uid, err_msg);
	if (rc != SLURM_SUCCESS)
		return rc;
	if (config_skips(hook_config(), partitions_of(job))) {
		note_unchecked(job, request_owner(job, submit_uid));
		return check_own_gres(job, submit_uid, err_msg);
	}
	recent_note(request_owner(job, submit_uid), RECENT_ANY, monotonic_us());
	if (flags_read(job, &flags, &wrong))
		rc = submit_with_flags(job, submit_uid, &flags, err_msg);
	else
		rc = wrong_flag(wrong, err_msg);
	flags_free(&flags);
	component_end(job);
	return rc;
}

/*
 * The job's present features are not ours to see in a change, so the model can only join what the
 * change itself sets: anything else would drop either the model or the user's constraint.
 */
static int change_models(job_desc_msg_t *change, struct tres_found *found, char **err_msg)
{
	if (layout_is_plain())
		return SLURM_SUCCESS;
	if (!change->features)
		return refuse(
		    err_msg, ESLURM_INVALID_GRES,
		    "berth: to change a job to another GPU model, leave the model out of the "
		    "GPU request and give Features=MODEL in the same change" BERTH_ID(828));
	return handle_models(change, found, err_msg);
}

/*
 * An administrator's change is the owner's for Slurm: without the rest of the request the job would
 * stay bound to its place. Berth's own changes come with a segment; a place by hand stays as it is.
 * A change of SlurmUser's is not completed: berthd plans the job anew.
 */
static void complete_for_owner(job_desc_msg_t *job, job_record_t *record, uint32_t uid)
{
	struct tres_found found;
	struct listed listed;
	struct asked asked;

	request_scan(job, &found);
	if (job->admin_comment || found.position_type || found.shared || found.hidden)
		return;
	listed = change_look_up(job, record);
	if (uid == geteuid()) {
		/* As SlurmUser berthd writes nodes alone too, when it takes a change back. */
		if (change_touches_gpus(job))
			change_mark(&listed);
		return;
	}
	change_look_up_asked(&listed, &asked);
	change_complete(job, &listed, &asked, true);
}

int job_modify(job_desc_msg_t *job, job_record_t *record, uint32_t submit_uid, char **err_msg)
{
	char message[MESSAGE_MAX + 1];
	struct tres_found found;
	struct listed listed;
	struct asked asked;
	bool elsewhere, request, excludes;
	int rc;

	if (idle)
		return SLURM_SUCCESS;
	change_restore(job);
	request = change_touches_request(job);
	excludes = job->exc_nodes;
	if (layout_is_plain())
		let_change_replace(job);
	/* berthd's own pins come this way, as SlurmUser. */
	if (trusted(submit_uid)) {
		if (request && !layout_is_plain())
			complete_for_owner(job, record, submit_uid);
		return SLURM_SUCCESS;
	}
	rc = check_texts(job, submit_uid, err_msg);
	if (rc == SLURM_SUCCESS)
		rc = check_licenses(job, submit_uid, err_msg);
	if (rc != SLURM_SUCCESS || !change_matters(job))
		return rc;
	listed = change_look_up(job, record);
	if (layout_is_plain() && let_change_unpin(job, &listed))
		return SLURM_SUCCESS;
	change_look_up_asked(&listed, &asked);
	if (change_refused(job, &listed, &asked, submit_uid, message) ||
	    change_breaks_rule(job, &listed, submit_uid, message))
		return refuse(err_msg, ESLURM_ACCESS_DENIED, message);
	request_scan(job, &found);
	elsewhere = change_is_elsewhere(job, &listed);
	if (elsewhere)
		note_unchecked(job, submit_uid);
	rc = elsewhere ? check_own_gres(job, submit_uid, err_msg)
		       : check_gres(&found, submit_uid, err_msg);
	if (rc == SLURM_SUCCESS && !elsewhere && found.model[0])
		rc = change_models(job, &found, err_msg);
	if (rc == SLURM_SUCCESS && change_too_early(job, &listed, submit_uid, message))
		rc = refuse(err_msg, ESLURM_ACCESS_DENIED, message);
	if (rc == SLURM_SUCCESS && (request || job->extra))
		change_complete(job, &listed, &asked, request);
	if (rc == SLURM_SUCCESS && excludes && !layout_is_plain())
		change_mark_excluded(&listed, job->exc_nodes);
	return rc;
}
