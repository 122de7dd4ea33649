/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sbatch has read the script and all options when it comes here. It forks: the child makes the
 * request smaller, submits it as the pre-flight and tells the id; the parent then lets its own job
 * depend on that id. On the node SPANK starts the script of a pre-flight under the runner.
 */
#include "cli_filter/preflight.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli_filter/preflight_shrink.h"
#include "common/client_side.h"
#include "common/messages.h"
#include "common/slurm_api.h"
#include "config/options.h"
#include "text/text.h"
#include "text/tres.h"

#define TELL_MAX 512
/* A submission takes some milliseconds; Slurm itself gives up a question after ten seconds. */
#define LONGEST_S 30

/* What there is to do in this sbatch. */
struct wish {
	bool asked; /* by the user, not by the site's rule alone */
	bool must;  /* without its pre-flight the job is not wanted */
	uint64_t seconds;
};

static struct {
	uint32_t first; /* the pre-flight that this sbatch has had submitted */
	bool submitted; /* the job that depends on it, too */
	bool decided; /* the user said no, or reads why not: parts of the job behind say no more */
	uint32_t *told; /* in the child: where the parent reads the pre-flight's id */
} state;

/* sbatch itself keeps it back with -Q. */
static void tell(slurm_opt_t *opt, const char *text)
{
	if (!slurm_option_isset(opt, "parsable") && !client_is_silent())
		slurm_info("berth: %s" BERTH_ID(849), text);
}

/* If the user says nothing, the site's rule for jobs of this size. */
static bool find_wish(slurm_opt_t *opt, const struct preflight_config *config, struct wish *wish)
{
	const char *asked = getenv(PREFLIGHT_ASKED);
	bool no = asked && !strcmp(asked, PREFLIGHT_NO);
	char *partition;

	*wish = (struct wish){.asked = asked, .seconds = config->time};
	if (asked && !no)
		preflight_value(asked, &wish->seconds, &wish->must);
	unsetenv(PREFLIGHT_ASKED);
	state.decided |= no;
	if (no || slurm_option_isset(opt, "test-only"))
		return false;
	if (wish->asked)
		return true;
	partition = slurm_option_get(opt, "partition");
	no = state.decided || !config->above || preflight_gpus(opt) <= config->above ||
	     client_skips(partition);
	slurm_xfree((void **)&partition);
	return !no;
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
	if (slurm_option_isset(opt, "array"))
		return "an array has none";
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
		state.decided = true;
		return SLURM_SUCCESS;
	}
	slurm_error("berth: no pre-flight: %s; nothing is submitted. Mend that, or say "
		    "--" OPTION_PREFLIGHT "=" PREFLIGHT_NO BERTH_ID(851),
		    why);
	return SLURM_ERROR;
}

/*
 * Slurm waits for its end, whatever that is. A failure that says something about the job ends the
 * job too: the runner cancels it. Nothing else that happens to a pre-flight costs a job more than
 * time.
 */
static int depend_on(slurm_opt_t *opt, uint32_t id)
{
	char *dependency = slurm_option_get(opt, "dependency");
	char number[16];
	struct text joined;
	int rc = SLURM_ERROR;

	text_init(&joined, FOREIGN_TEXT_MAX);
	text_addf(&joined, "afterany:%" PRIu32, id);
	if (dependency && *dependency) {
		text_add(&joined, ",");
		text_add(&joined, dependency);
	}
	slurm_xfree((void **)&dependency);
	if (!joined.failed)
		rc = slurm_option_set(opt, "dependency", text_str(&joined), false);
	text_free(&joined);
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

/* The first complaint in what the child said, as a part of our own sentence. */
static void first_error(int said, int status, char why[TELL_MAX])
{
	static const char mark[] = "error: ", ours[] = "berth: ";
	bool late = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
	char text[8 * TELL_MAX];
	ssize_t len = pread(said, text, sizeof(text) - 1, 0);
	const char *line;
	int end;

	text[len > 0 ? len : 0] = '\0';
	line = strstr(text, mark);
	line = line ? line + strlen(mark) : text;
	if (!strncmp(line, ours, strlen(ours)))
		line += strlen(ours);
	if (!*line)
		line = late ? "Slurm did not take it in time" : "sbatch ended without a reason";
	end = (int)strcspn(line, "\n");
	snprintf(why, TELL_MAX, "%.*s", end && line[end - 1] == '.' ? end - 1 : end, line);
}

/* The child: it goes on as an sbatch of its own, until preflight_submitted(). */
static int become_preflight(slurm_opt_t *opt, const struct preflight_config *config,
			    const struct wish *wish, int said)
{
	const char *rule = wish->must ? ",must" : wish->asked ? "" : ",site";
	int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
	sigset_t alarms;
	char how[32];

	/* Whatever started sbatch may have set it aside. */
	signal(SIGALRM, SIG_DFL);
	sigemptyset(&alarms);
	sigaddset(&alarms, SIGALRM);
	sigprocmask(SIG_UNBLOCK, &alarms, NULL);
	alarm(LONGEST_S);
	if (dup2(nowhere, STDOUT_FILENO) < 0 || dup2(said, STDERR_FILENO) < 0)
		_exit(EXIT_FAILURE);
	snprintf(how, sizeof(how), "%" PRIu64 "%s", wish->seconds, rule);
	setenv(PREFLIGHT_SECONDS, how, 1);
	return preflight_shrink(opt, config->partition, wish->seconds);
}

static int submit_first(slurm_opt_t *opt, const struct preflight_config *config,
			const struct wish *wish)
{
	uint32_t *told =
	    mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int said = memfd_create("berth", MFD_CLOEXEC);
	pid_t child = told == MAP_FAILED || said < 0 ? -1 : fork();
	char text[TELL_MAX];
	int status = 0;

	if (child < 0)
		return go_without(opt, wish, "sbatch could not start a second process");
	if (!child) {
		state.told = told;
		return become_preflight(opt, config, wish, said);
	}
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	state.first = *told;
	if (!state.first) {
		first_error(said, status, text);
		return go_without(opt, wish, text);
	}
	atexit(cancel_if_alone);
	if (depend_on(opt, state.first) != SLURM_SUCCESS) {
		slurm_error(
		    "berth: the job cannot be made to depend on its pre-flight" BERTH_ID(853));
		return SLURM_ERROR;
	}
	snprintf(text, sizeof(text),
		 "pre-flight %" PRIu32 " runs first, on one GPU for at most %" PRIu64 " s; "
		 "if it %s, the job ends with it",
		 state.first, wish->seconds, wish->asked ? "fails" : "finds a mistake");
	tell(opt, text);
	return SLURM_SUCCESS;
}

int preflight_sbatch(slurm_opt_t *opt, int offset)
{
	struct preflight_config config;
	struct wish wish;
	const char *why;

	if (state.told) {
		slurm_error("a heterogeneous job has none" BERTH_ID(854));
		return SLURM_ERROR;
	}
	/* What a script submits, it will submit again when it runs in earnest. */
	if (getenv(PREFLIGHT_HERE)) {
		unsetenv(PREFLIGHT_ASKED);
		tell(opt, "within a pre-flight sbatch only tests, and submits nothing");
		return slurm_option_set(opt, "test-only", NULL, false);
	}
	client_preflight_config(&config);
	if (!find_wish(opt, &config, &wish))
		return SLURM_SUCCESS;
	why = obstacle(opt, offset);
	return why ? go_without(opt, &wish, why) : submit_first(opt, &config, &wish);
}

void preflight_submitted(uint32_t job_id)
{
	state.submitted = true;
	if (!state.told)
		return;
	*state.told = job_id;
	_exit(EXIT_SUCCESS);
}
