/* SPDX-License-Identifier: Apache-2.0 */
#include "common/messages.h"
#include "job_submit/ask.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "berthd/breaker.h"
#include "berthd/client.h"
#include "berthd/hook_log.h"

#define COMPLAIN_EVERY_US (60 * UINT64_C(1000000))
/* So many users whose calls fail open the breaker, as so many of one user do for that one. */
#define BREAKER_FAILURES 3

static struct hook_config config;
static struct breaker breaker;
static struct client client;
static int hook_log_fd = -1;

/* A node's record, or NULL. slurmctld holds its node lock around us. */
static void *(*find_node)(const char *name);

const struct hook_config *hook_config(void)
{
	return &config;
}

static bool node_exists(const char *name)
{
	return find_node(name) != NULL;
}

static void read_config(void)
{
	char path[CONFIG_TEXT_MAX + 1];
	char error[CONFIG_ERROR_MAX];

	config_defaults(&config);
	if (!config_path(slurm_conf.slurm_conf, path))
		slurm_error("berth: the path of berth.conf is longer than 1023 bytes; using "
			    "defaults" BERTH_ID(831));
	else if (!config_load(path, &config, error))
		slurm_error("berth: %s; using defaults for all of [hook]" BERTH_ID(831), error);
}

void ask_init(void)
{
	read_config();
	breaker_init(&breaker, BREAKER_FAILURES, config.breaker_seconds);
	client_init(&client);
	/*
	 * Not in any public header, so its absence must cost the pins only, not slurmctld. The name
	 * without alias: a pin must name the node itself.
	 */
	*(void **)&find_node = dlsym(RTLD_DEFAULT, "find_node_record_no_alias");
	if (!find_node)
		slurm_error(
		    "berth: this Slurm has no find_node_record_no_alias, so no job is pinned; "
		    "get a Berth for this release" BERTH_ID(832));
	if (*config.hook_log) {
		hook_log_fd = hook_log_open(config.hook_log);
		if (hook_log_fd < 0)
			slurm_error("berth: cannot write hook_log %s: %s" BERTH_ID(833),
				    config.hook_log, strerror(errno));
	}
}

void ask_fini(void)
{
	if (hook_log_fd >= 0)
		close(hook_log_fd);
	hook_log_fd = -1;
	client_hang_up(&client);
}

void ask_log(enum outcome outcome, uint64_t started_us, const job_desc_msg_t *job,
	     uint32_t submit_uid)
{
	static const char *const names[] = {
	    [OUTCOME_PLACE] = "place",	 [OUTCOME_LATER] = "later", [OUTCOME_PASS] = "pass",
	    [OUTCOME_REFUSE] = "refuse", [OUTCOME_DEAD] = "dead",   [OUTCOME_TIMEOUT] = "timeout",
	    [OUTCOME_BAD] = "bad",	 [OUTCOME_OPEN] = "open",   [OUTCOME_LARGE] = "large",
	};

	if (hook_log_fd >= 0)
		hook_log_write(hook_log_fd, monotonic_us() - started_us, names[outcome],
			       request_owner(job, submit_uid));
}

/* true at most once a minute for each kind of complaint, whatever the rate of submissions. */
static bool may_complain(_Atomic uint64_t *last_us)
{
	uint64_t now = monotonic_us();
	uint64_t last = atomic_load(last_us);

	if (last && now - last < COMPLAIN_EVERY_US)
		return false;
	return atomic_compare_exchange_strong(last_us, &last, now);
}

static void complain(enum outcome outcome, const char *why, uint32_t uid)
{
	static _Atomic uint64_t last_silence;
	static _Atomic uint64_t last_bad;

	if (outcome == OUTCOME_BAD) {
		if (may_complain(&last_bad))
			slurm_error("berth: berthd's answer to a job of uid %" PRIu32
				    " was dropped: %s" BERTH_ID(834),
				    uid, why);
	} else if (may_complain(&last_silence)) {
		slurm_error("berth: berthd does not answer on %s (%s; a job of uid %" PRIu32
			    "); jobs are %s without it" BERTH_ID(835),
			    config.socket, why, uid, config.fail_closed ? "refused" : "taken");
	}
}

static bool make_nonce(char nonce[NONCE_LEN + 1])
{
	uint64_t number;

	if (getrandom(&number, sizeof(number), GRND_NONBLOCK) != sizeof(number))
		return false;
	snprintf(nonce, NONCE_LEN + 1, "%016" PRIx64, number);
	return true;
}

static enum outcome exchange(const struct text *request, const struct reply_expected *expected,
			     struct reply *reply, const char **why, char error[REPLY_ERROR_MAX])
{
	static const enum outcome verbs[] = {
	    [REPLY_PLACE] = OUTCOME_PLACE, [REPLY_LATER] = OUTCOME_LATER,
	    [REPLY_PASS] = OUTCOME_PASS,   [REPLY_REFUSE] = OUTCOME_REFUSE,
	    [REPLY_BUSY] = OUTCOME_OPEN,
	};
	size_t len = 0;

	reply->ours = false;
	switch (client_ask(&client, config.socket, geteuid(), config.deadline_ms, request->data,
			   request->len, reply->text, REPLY_MAX_BYTES, &len)) {
	case ASK_DEAD:
		*why = "no berthd listens";
		return OUTCOME_DEAD;
	case ASK_TIMEOUT:
		*why = "no answer within the deadline";
		return OUTCOME_TIMEOUT;
	case ASK_BAD:
		*why = "the socket is neither root's nor SlurmUser's, or a datagram was too long";
		return OUTCOME_BAD;
	case ASK_OK:
		break;
	}
	if (reply_parse(reply, len, expected, error))
		return verbs[reply->verb];
	*why = error;
	client_hang_up(&client);
	return OUTCOME_BAD;
}

/*
 * What counts against berthd for everybody. A reply with our nonce that is wrong elsewhere does
 * not: berthd lives, and what one user writes must not cost the others their places.
 */
static bool is_failure(enum outcome outcome, const struct reply *reply)
{
	return outcome == OUTCOME_TIMEOUT || (outcome == OUTCOME_BAD && !reply->ours);
}

/* A user's own segments stay, and so does a job whose number of nodes Slurm settles. */
static uint32_t may_be_segmented(const job_desc_msg_t *job)
{
	bool has = job->segment_size && job->segment_size != NO_VAL16;

	return has || job->min_nodes == NO_VAL || job->min_nodes >= NO_VAL16 ? 0 : job->min_nodes;
}

/* Write the request, and ask. */
static enum outcome tried(const job_desc_msg_t *job, uint32_t submit_uid,
			  const struct flag_values *flags, struct reply *reply, const char **why,
			  char error[REPLY_ERROR_MAX])
{
	char nonce[NONCE_LEN + 1];
	struct reply_expected expected = {
	    .nonce = nonce,
	    .min_cpus = job->min_cpus == NO_VAL ? 0 : job->min_cpus,
	    .share = flags_share(flags),
	    .cpus_per_tres = job->cpus_per_tres != NULL,
	    .batch = request_is_batch(job),
	    .exc_nodes = job->exc_nodes && *job->exc_nodes,
	    .node_exists = find_node ? node_exists : NULL,
	    .licenses = slurm_conf.licenses,
	    .segmented = may_be_segmented(job),
	    .nodes = config.layout == LAYOUT_PLAIN && !(job->req_nodes && *job->req_nodes)
			 ? request_nodes(job)
			 : 0,
	};
	struct text request;
	enum outcome outcome = OUTCOME_LARGE;

	if (!make_nonce(nonce)) {
		*why = "no random numbers for a nonce";
		breaker_not_tried(&breaker);
		return OUTCOME_BAD;
	}
	request_count_gpus(job, &expected);
	text_init(&request, REQUEST_MAX_BYTES);
	request_write(job, submit_uid, nonce, flags, &expected, &request);
	if (request.failed) {
		breaker_not_tried(&breaker);
	} else {
		outcome = exchange(&request, &expected, reply, why, error);
		/* A refused connection costs nothing, and trying on finds a restarted berthd. */
		breaker_report(&breaker, monotonic_us() / 1000, request_owner(job, submit_uid),
			       !is_failure(outcome, reply));
		/* From now on its requests cost nothing. */
		if (outcome == OUTCOME_OPEN)
			breaker_set_aside(&breaker, monotonic_us() / 1000,
					  request_owner(job, submit_uid), reply->seconds);
	}
	text_free(&request);
	return outcome;
}

enum outcome ask_berthd(const job_desc_msg_t *job, uint32_t submit_uid,
			const struct flag_values *flags, struct reply *reply)
{
	char error[REPLY_ERROR_MAX];
	const char *why = "too many failures in a row, or this user's requests take it too long";
	enum outcome outcome = OUTCOME_OPEN;

	if (request_too_large(job, false))
		return OUTCOME_LARGE;
	/* First of all: while berthd is not asked, a submission costs nothing. */
	if (breaker_allows(&breaker, monotonic_us() / 1000, request_owner(job, submit_uid)))
		outcome = tried(job, submit_uid, flags, reply, &why, error);
	if (outcome > OUTCOME_REFUSE && outcome != OUTCOME_LARGE)
		complain(outcome, why, request_owner(job, submit_uid));
	return outcome;
}
