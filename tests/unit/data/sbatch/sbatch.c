/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sbatch around the plugin: it reads the options of each part of a job, and submits.
 *
 *   sbatch NAME=VALUE... [: NAME=VALUE...]
 *
 * preflight=VALUE is what SPANK says of the user's flag. CHILD is what the submission of the
 * pre-flight comes to: "taken", "late", or what sbatch says before it fails. sbatch was started
 * with SIGALRM ignored and blocked.
 */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli_filter/preflight.h"
#include "common/slurm_api.h"
#include "config/options.h"
#include "sbatch_options.h"

static void say(const char *head, const char *format, va_list arguments)
{
	fprintf(stderr, "sbatch: %s", head);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
}

void slurm_error(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	say("error: ", format, arguments);
	va_end(arguments);
}

void slurm_info(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	say("", format, arguments);
	va_end(arguments);
}

int slurm_kill_job2(const char *job_id, uint16_t signal, uint16_t flags, const char *sibling)
{
	(void)job_id, (void)signal, (void)flags, (void)sibling;
	return SLURM_SUCCESS;
}

/* Time passes at once. */
unsigned int alarm(unsigned int seconds)
{
	if (!strcmp(getenv("CHILD"), "late"))
		raise(SIGALRM);
	return seconds;
}

static void submit(void)
{
	const char *child = getenv("CHILD");
	bool first = getenv(PREFLIGHT_SECONDS);

	if (first && strcmp(child, "taken") != 0) {
		fprintf(stderr, "%s", child);
		_exit(EXIT_FAILURE);
	}
	preflight_submitted(first ? 41 : 42);
}

int main(int argc, char **argv)
{
	sigset_t alarms;
	int offset = 0;

	signal(SIGALRM, SIG_IGN);
	sigemptyset(&alarms);
	sigaddset(&alarms, SIGALRM);
	sigprocmask(SIG_BLOCK, &alarms, NULL);
	for (int i = 1; i <= argc; i++) {
		if (i == argc || !strcmp(argv[i], ":")) {
			if (preflight_sbatch(NULL, offset++) != SLURM_SUCCESS)
				return EXIT_FAILURE;
		} else if (!strncmp(argv[i], "preflight=", strlen("preflight="))) {
			setenv(PREFLIGHT_ASKED, argv[i] + strlen("preflight="), 1);
		} else {
			options_read(argv[i]);
		}
	}
	submit();
	options_print();
	return EXIT_SUCCESS;
}
