/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slurm does not tell a plugin whether who submits wants to read anything. The client's command
 * line and the script's own options do. A wrong guess costs a sentence, which "berth why" has too.
 */
#include "request/request.h"

#include <stdlib.h>
#include <string.h>

/* Of sbatch, srun and salloc: options without a value, so that another may follow in one word. */
#define BUNDLED "HOQVWhsv"
/* How much of a script, and of a command line, is read. */
#define SCRIPT_READ 65536
#define SUBMIT_LINE_READ (1 << 20)

/* A long option may be cut short as far as it is the only one. */
static bool is_option(const char *word, size_t len, const char *option, size_t least)
{
	return len >= least && len <= strlen(option) && !strncmp(word, option, len);
}

static bool is_parsable(const char *word, size_t len)
{
	return is_option(word, len, "--parsable", strlen("--pars"));
}

static bool is_quiet(const char *word, size_t len)
{
	size_t i = 1;

	if (is_option(word, len, "--quiet", strlen("--qu")))
		return true;
	if (len < 2 || word[0] != '-')
		return false;
	while (i < len && word[i] != 'Q' && strchr(BUNDLED, word[i]))
		i++;
	return i < len && word[i] == 'Q';
}

/*
 * Behind --wrap stands a command whose words may be anything. It may be followed by --parsable;
 * with -Q the client shows nothing anyway.
 */
static bool words_ask(const char *words, size_t len)
{
	bool wrapped = false;

	for (size_t i = 0, n; i < len; i += n) {
		const char *word;

		i += strspn(words + i, " \t\r");
		if (i >= len)
			break;
		word = words + i;
		n = strcspn(word, " \t\r\n");
		if (n > len - i)
			n = len - i;
		if (n == 0)
			break;
		if (is_parsable(word, n) || (!wrapped && is_quiet(word, n)))
			return true;
		wrapped = wrapped || !strncmp(word, "--wr", strlen("--wr"));
	}
	return false;
}

/*
 * How much of the command line comes before the script. Its arguments stand at the end, as they
 * are; of its name only the last part is known. Where they are not found, all of the line.
 */
static size_t options_len(const job_desc_msg_t *job)
{
	const char *line = job->submit_line;
	size_t whole = strlen(line), len = whole;

	if (!job->argv || !job->argc)
		return whole;
	for (uint32_t i = job->argc; i-- > 1;) {
		const char *argument = job->argv[i] ? job->argv[i] : "";
		size_t n = strlen(argument);

		if (n + 1 > len || line[len - n - 1] != ' ' ||
		    strncmp(line + len - n, argument, n) != 0)
			return whole;
		len -= n + 1;
	}
	while (len && line[len - 1] != ' ')
		len--;
	return len;
}

/* The lines before the first command; sbatch reads no further. */
static bool script_asks(const char *script)
{
	static const char mark[] = "#SBATCH";
	const char *line = script;

	while (*line) {
		size_t len = strcspn(line, "\n");

		if (line[0] != '#' && strspn(line, " \t\r") < len)
			return false;
		if (!strncmp(line, mark, strlen(mark))) {
			const char *words = line + strlen(mark);
			const char *comment = memmem(words, len - strlen(mark), " #", 2);
			size_t words_len = comment ? (size_t)(comment - words) : len - strlen(mark);

			if (strchr(" \t", *words) && words_ask(words, words_len))
				return true;
		}
		line += len + (line[len] == '\n');
	}
	return false;
}

bool request_is_quiet(const job_desc_msg_t *job)
{
	const char *line = job->submit_line;
	char *head;
	bool asks;

	/* Slurm takes no longer line, unless its site says so. */
	if (line && strnlen(line, SUBMIT_LINE_READ) < SUBMIT_LINE_READ &&
	    words_ask(line, options_len(job)))
		return true;
	/* A script may be as long as its site allows, and slurmctld's locks are held. */
	head = job->script ? strndup(job->script, SCRIPT_READ) : NULL;
	asks = head && script_asks(head);
	free(head);
	return asks;
}
