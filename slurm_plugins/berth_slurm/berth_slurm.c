/* SPDX-License-Identifier: Apache-2.0 */
/* The way of berthd to Slurm where there is no pyslurm (gateway.h). */
#include "berth_slurm/gateway.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

/*
 * Releases number their library on; its structs fit the headers of the same release only. Of a
 * release after the last one it is known that its number is higher.
 */
static bool fits(long api)
{
	static const struct {
		uint32_t release;
		long api;
	} known[] = {{SLURM_VERSION_NUM(24, 11, 0), 42},
		     {SLURM_VERSION_NUM(25, 5, 0), 43},
		     {SLURM_VERSION_NUM(25, 11, 0), 44},
		     {SLURM_VERSION_NUM(26, 5, 0), 45},
		     {SLURM_VERSION_NUM(26, 11, 0), 46}};
	size_t last = sizeof(known) / sizeof(*known) - 1, i = last;

	if (SLURM_VERSION_NUMBER >= known[last].release + SLURM_VERSION_NUM(0, 1, 0))
		return api > known[last].api;
	while (i > 0 && SLURM_VERSION_NUMBER < known[i].release)
		i--;
	return api == known[i].api;
}

static int perform(char *command, struct text *said)
{
	char *rest = command;
	char *verb = strsep(&rest, " ");
	char *job = rest ? strsep(&rest, " ") : NULL;
	uint64_t job_id;

	if (!strcmp(verb, "read") && (!job || !strcmp(job, "all")))
		return gateway_read(job != NULL);
	if (!strcmp(verb, "config") && !job)
		return gateway_config();
	if (!strcmp(verb, "ping") && !job)
		return gateway_ping();
	if (!strcmp(verb, "job") && job && !rest && parse_number(job, NO_VAL - 1, &job_id))
		return gateway_job((uint32_t)job_id);
	if (!strcmp(verb, "update") && job && rest)
		return gateway_update(job, rest, said);
	if (!strcmp(verb, "requeue") && job && !rest)
		return gateway_requeue(job, false, said);
	if (!strcmp(verb, "evict") && job && !rest)
		return gateway_requeue(job, true, said);
	if (!strcmp(verb, "cancel") && job && !rest)
		return gateway_cancel(job);
	if (!strcmp(verb, "signal") && job && rest)
		return gateway_signal(job, rest);
	text_addf(said, "a command that berth-slurm does not know: %.64s", verb);
	return EINVAL;
}

static void answer(char *command)
{
	struct text line = {.limit = GATEWAY_LINE}, said = {.limit = GATEWAY_LINE};
	int problem;

	errno = 0;
	problem = perform(command, &said);
	if (problem) {
		json_begin(&line, "error");
		json_text(&line, said.len ? text_str(&said) : slurm_strerror(problem));
	} else {
		json_begin(&line, "ok");
	}
	json_end(&line);
	fflush(stdout);
	text_free(&line);
	text_free(&said);
}

int main(int argc, char **argv)
{
	char *command = NULL;
	size_t size = 0;
	ssize_t len;

	if (!fits(SLURM_VERSION_MAJOR(slurm_api_version()))) {
		fputs("berth-slurm was built for another Slurm than the one here: build it anew\n",
		      stderr);
		return 1;
	}
	if (argc > 1 && !strcmp(argv[1], "--version")) {
		printf("%d.%02d.%d\n", SLURM_VERSION_MAJOR(SLURM_VERSION_NUMBER),
		       SLURM_VERSION_MINOR(SLURM_VERSION_NUMBER),
		       SLURM_VERSION_MICRO(SLURM_VERSION_NUMBER));
		return 0;
	}
	if (argc > 1 && !strcmp(argv[1], "--help")) {
		puts("usage: berth-slurm [--version]\n\n"
		     "Reads and changes Slurm's records for berthd, which starts it:\n"
		     "commands come on standard input, answers go to standard output.");
		return 0;
	}
	/* All tasks of an array, not only those that fit on a screen. */
	setenv("SLURM_BITSTR_LEN", "0", 1);
	slurm_init(NULL);
	puts("[\"ok\"]");
	fflush(stdout);
	while ((len = getline(&command, &size, stdin)) > 0) {
		if (command[len - 1] == '\n')
			command[len - 1] = '\0';
		answer(command);
	}
	free(command);
	gateway_forget();
	slurm_fini();
	return 0;
}
