/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_filter/preflight.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli_filter/preflight_again.h"
#include "common/client_side.h"
#include "common/messages.h"
#include "common/slurm_api.h"
#include "config/config.h"
#include "config/options.h"
#include "text/text.h"
#include "text/tres.h"

#define TELL_MAX (AGAIN_WHY_MAX + 64)

/* What there is to do in this sbatch. */
struct wish {
	bool must; /* without its pre-flight the job is not wanted */
	uint64_t seconds;
};

static struct {
	uint32_t first; /* the pre-flight that this sbatch has had submitted */
	bool submitted; /* the job that depends on it, too */
	bool is_one;	/* this sbatch submits a pre-flight */
} state;

/* sbatch itself keeps it back with -Q. */
static void tell(slurm_opt_t *opt, const char *text)
{
	if (!slurm_option_isset(opt, "parsable") && !client_is_silent())
		slurm_info("berth: %s" BERTH_ID(849), text);
}

void preflight_keep_script(void)
{
	again_keep_input();
}

void preflight_other_command(void)
{
	const char *asked = getenv(PREFLIGHT_ASKED);

	if (asked && strcmp(asked, PREFLIGHT_NO) && !client_is_silent())
		slurm_info("berth: --" OPTION_PREFLIGHT " works in sbatch only; this goes on "
			   "without a pre-flight" BERTH_ID(850));
	unsetenv(PREFLIGHT_ASKED);
}

static bool left_alone(slurm_opt_t *opt)
{
	char *partition = slurm_option_get(opt, "partition");
	bool skipped = client_skips(partition);

	slurm_xfree((void **)&partition);
	return skipped;
}

/* Where the user says nothing, the site's rule for jobs of this size. */
static bool find_wish(slurm_opt_t *opt, const struct preflight_config *config, struct wish *wish)
{
	const char *asked = getenv(PREFLIGHT_ASKED);
	bool no = asked && !strcmp(asked, PREFLIGHT_NO);
	char text[TELL_MAX];

	*wish = (struct wish){.seconds = config->time};
	wish->must = config->fail_closed;
	if (asked && !no)
		preflight_value(asked, &wish->seconds, &wish->must);
	unsetenv(PREFLIGHT_ASKED);
	if (no || slurm_option_isset(opt, "test-only"))
		return false;
	if (!asked && (!config->above || preflight_gpus(opt) <= config->above || left_alone(opt)))
		return false;
	if (wish->seconds > config->longest) {
		wish->seconds = config->longest;
		snprintf(text, sizeof(text), "a pre-flight takes at most %" PRIu64 " s here",
			 wish->seconds);
		tell(opt, text);
	}
	return true;
}

/* What stands against it, in the words of the sentence about it; NULL: nothing that is known here.
 */
static const char *obstacle(slurm_opt_t *opt, int offset)
{
	struct tres_found found;
	char *dependency;
	bool either;

	if (offset > 0)
		return "a heterogeneous job has none";
	requests_scan(opt, &found);
	if (!found.gpu && !preflight_gpus(opt))
		return "the job asks for no GPUs";
	if (slurm_option_isset(opt, "hold"))
		return "the job is held, and it may be too early for its script";
	if (slurm_option_isset(opt, "clusters"))
		return "--clusters may send the job away from it";
	if (slurm_option_isset(opt, "container") || slurm_option_isset(opt, "container-id"))
		return "its script runs in a container, where Berth's runner is not";
	dependency = slurm_option_get(opt, "dependency");
	either = dependency && strchr(dependency, '?');
	slurm_xfree((void **)&dependency);
	return either ? "no other dependency can be added to one with \"?\"" : NULL;
}

static int go_without(slurm_opt_t *opt, const struct wish *wish, const char *why)
{
	char text[TELL_MAX];

	if (!wish->must) {
		snprintf(text, sizeof(text), "no pre-flight: %s; the job goes on without", why);
		tell(opt, text);
		return SLURM_SUCCESS;
	}
	slurm_error("berth: no pre-flight: %s; nothing is submitted. Mend that, or say "
		    "--" OPTION_PREFLIGHT "=" PREFLIGHT_NO " if your site allows it" BERTH_ID(851),
		    why);
	return SLURM_ERROR;
}

/* Slurm waits for it, ends the job if it fails, and needs no berthd for either. */
static int depend_on(slurm_opt_t *opt, uint32_t id)
{
	char *dependency = slurm_option_get(opt, "dependency");
	char number[16];
	struct text joined;
	int rc = SLURM_ERROR;

	text_init(&joined, FOREIGN_TEXT_MAX);
	text_addf(&joined, "afterok:%" PRIu32, id);
	if (dependency && *dependency) {
		text_add(&joined, ",");
		text_add(&joined, dependency);
	}
	slurm_xfree((void **)&dependency);
	if (!joined.failed)
		rc = slurm_option_set(opt, "dependency", text_str(&joined), false);
	text_free(&joined);
	if (rc == SLURM_SUCCESS && !slurm_option_isset(opt, "kill-on-invalid-dep"))
		rc = slurm_option_set(opt, "kill-on-invalid-dep", "yes", false);
	snprintf(number, sizeof(number), "%" PRIu32, id);
	setenv(PREFLIGHT_JOB, number, 1);
	return rc;
}

/* A pre-flight whose job was refused would fly for nothing. */
static void cancel_if_alone(void)
{
	char id[16];

	snprintf(id, sizeof(id), "%" PRIu32, state.first);
	if (!state.submitted && slurm_kill_job2(id, SIGKILL, 0, NULL) == SLURM_SUCCESS)
		fprintf(stderr,
			"berth: pre-flight %s is cancelled: its job was not submitted" BERTH_ID(
			    852) "\n",
			id);
}

static int submit_first(slurm_opt_t *opt, const struct preflight_config *config,
			const struct wish *wish)
{
	char why[AGAIN_WHY_MAX];
	char text[TELL_MAX];
	uint32_t id = again_submit(wish->seconds, config->tier, why);

	if (!id)
		return go_without(opt, wish, why);
	state.first = id;
	atexit(cancel_if_alone);
	if (depend_on(opt, id) != SLURM_SUCCESS) {
		slurm_error(
		    "berth: the job cannot be made to depend on its pre-flight" BERTH_ID(853));
		return SLURM_ERROR;
	}
	snprintf(text, sizeof(text),
		 "pre-flight %" PRIu32 " runs first, on one GPU for at most %" PRIu64 " s; "
		 "if it fails, the job ends with it",
		 id, wish->seconds);
	tell(opt, text);
	return SLURM_SUCCESS;
}

static int become_preflight(slurm_opt_t *opt, int offset, const char *submit)
{
	char seconds[24];

	if (offset > 0) {
		slurm_error("a heterogeneous job has none" BERTH_ID(854));
		return SLURM_ERROR;
	}
	snprintf(seconds, sizeof(seconds), "%" PRIu64, (uint64_t)strtoull(submit, NULL, 10));
	/* None of this is for the job's own environment. */
	unsetenv(PREFLIGHT_SUBMIT);
	unsetenv(PREFLIGHT_TIER);
	unsetenv(PREFLIGHT_ASKED);
	setenv(PREFLIGHT_SECONDS, seconds, 1);
	state.is_one = true;
	return preflight_shrink(opt, strtoull(seconds, NULL, 10));
}

/* What a script submits, it will submit again when it runs in earnest. */
static int only_test(slurm_opt_t *opt)
{
	unsetenv(PREFLIGHT_ASKED);
	tell(opt, "within a pre-flight sbatch only tests, and submits nothing");
	return slurm_option_set(opt, "test-only", NULL, false);
}

int preflight_sbatch(slurm_opt_t *opt, int offset)
{
	const char *submit = getenv(PREFLIGHT_SUBMIT);
	struct preflight_config config;
	struct wish wish;
	const char *why;

	if (submit || state.is_one)
		return become_preflight(opt, offset, submit ? submit : "0");
	if (getenv(PREFLIGHT_HERE))
		return only_test(opt);
	client_preflight_config(&config);
	if (!find_wish(opt, &config, &wish) || state.first)
		return SLURM_SUCCESS;
	why = obstacle(opt, offset);
	return why ? go_without(opt, &wish, why) : submit_first(opt, &config, &wish);
}

void preflight_submitted(uint32_t job_id)
{
	char line[16];
	int len;

	state.submitted = true;
	if (!state.is_one)
		return;
	len = snprintf(line, sizeof(line), "%" PRIu32 "\n", job_id);
	if (write(PREFLIGHT_ID_FD, line, (size_t)len) != len)
		slurm_error("berth: the id of pre-flight %" PRIu32
			    " could not be handed on" BERTH_ID(855),
			    job_id);
}
