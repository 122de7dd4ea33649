/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slurm does not tell a plugin whether --parsable was given, after which a script reads what sbatch
 * prints. The client's command line and the script's own options do. A wrong guess, as about
 * arguments of the script, costs a sentence that "berth why" has too. With -Q the client hides it.
 */
#include "request/request.h"

#include <string.h>

/* How much of a script, and of a command line, is read. */
#define SCRIPT_READ 65536
#define SUBMIT_LINE_READ (1 << 20)

/* A long option may be cut short as far as it is the only one. */
static bool has_parsable(const char *words, size_t len)
{
	static const char option[] = "--pars";

	return memmem(words, len, option, strlen(option)) != NULL;
}

/* The lines before the first command; sbatch reads no further. */
static bool script_asks(const char *script, size_t len)
{
	static const char mark[] = "#SBATCH";

	while (len) {
		const char *end = memchr(script, '\n', len);
		size_t n = end ? (size_t)(end - script) : len;

		if (*script != '#' && strspn(script, " \t\r") < n)
			return false;
		if (!strncmp(script, mark, strlen(mark)) && has_parsable(script, n))
			return true;
		script += n + (end != NULL);
		len -= n + (end != NULL);
	}
	return false;
}

bool request_is_quiet(const job_desc_msg_t *job)
{
	const char *line = job->submit_line;
	/* Slurm takes no longer line, unless its site says so. */
	size_t len = line ? strnlen(line, SUBMIT_LINE_READ) : 0;

	if (len < SUBMIT_LINE_READ && len && has_parsable(line, len))
		return true;
	/* A script may be as long as its site allows, and slurmctld's locks are held. */
	return job->script && script_asks(job->script, strnlen(job->script, SCRIPT_READ));
}
