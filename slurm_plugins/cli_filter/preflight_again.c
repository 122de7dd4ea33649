/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_filter/preflight_again.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli_filter/preflight.h"
#include "text/text.h"

/* A submission takes some milliseconds; Slurm itself gives up a question after ten seconds. */
#define LONGEST_MS 30000
#define WORDS_MAX (4 * 1024 * 1024)

/* Standard input as it was before sbatch read it: a place in a file, or a copy of a full pipe. */
static struct {
	off_t start;
	int copy;
} input = {.start = -1, .copy = -1};

void again_keep_input(void)
{
	struct pollfd writers = {.fd = STDIN_FILENO};
	struct stat status;
	int waiting = 0, ends[2];

	if (input.copy >= 0 || fstat(STDIN_FILENO, &status))
		return;
	if (S_ISREG(status.st_mode)) {
		input.start = lseek(STDIN_FILENO, 0, SEEK_CUR);
		return;
	}
	/*
	 * A short here-document lies in the pipe as a whole, and nobody holds its other end any
	 * more. What is copied stays there; whatever is still being written is left alone.
	 */
	if (!S_ISFIFO(status.st_mode) || poll(&writers, 1, 0) < 0 || !(writers.revents & POLLHUP) ||
	    ioctl(STDIN_FILENO, FIONREAD, &waiting) || waiting < 1 || pipe2(ends, O_CLOEXEC))
		return;
	/* As many places as there: each write of whoever filled it may have taken one. */
	fcntl(ends[1], F_SETPIPE_SZ, fcntl(STDIN_FILENO, F_GETPIPE_SZ));
	if (tee(STDIN_FILENO, ends[1], (size_t)waiting, SPLICE_F_NONBLOCK) == waiting)
		input.copy = ends[0];
	else
		close(ends[0]);
	close(ends[1]);
}

static int open_input(void)
{
	int file;

	if (input.copy >= 0)
		return input.copy;
	/* Opened anew, it has a position of its own. */
	file = open(input.start >= 0 ? "/proc/self/fd/0" : "/dev/null", O_RDONLY | O_CLOEXEC);
	if (file >= 0 && input.start > 0)
		lseek(file, input.start, SEEK_SET);
	return file;
}

/* The words of the running command, in one block that the caller frees with the array. */
static char **own_words(char **block)
{
	int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	char *bytes = malloc(WORDS_MAX + 1);
	size_t len = 0, count = 0;
	char **words = NULL;
	ssize_t got;

	while (file >= 0 && bytes && len < WORDS_MAX &&
	       (got = read(file, bytes + len, WORDS_MAX - len)) > 0)
		len += (size_t)got;
	if (file >= 0)
		close(file);
	*block = bytes;
	if (!bytes || !len || len == WORDS_MAX || bytes[len - 1])
		return NULL;
	for (size_t i = 0; i < len; i++)
		count += !bytes[i];
	words = calloc(count + 1, sizeof(*words));
	for (size_t i = 0, at = 0; words && i < count; i++, at += strlen(bytes + at) + 1)
		words[i] = bytes + at;
	return words;
}

static pid_t start(char **words, int in, int id_end, int error_end)
{
	posix_spawn_file_actions_t actions;
	pid_t child = 0;
	int rc;

	if (posix_spawn_file_actions_init(&actions))
		return 0;
	posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
	posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, error_end, STDERR_FILENO);
	posix_spawn_file_actions_adddup2(&actions, id_end, PREFLIGHT_ID_FD);
	rc = posix_spawn(&child, "/proc/self/exe", &actions, NULL, words, environ);
	posix_spawn_file_actions_destroy(&actions);
	return rc ? 0 : child;
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Read both ends until they close; false: it took too long. What does not fit is dropped. */
static bool listen_to(int id_end, struct text *id, int error_end, struct text *said)
{
	struct pollfd ends[2] = {{.fd = id_end, .events = POLLIN},
				 {.fd = error_end, .events = POLLIN}};
	struct text *texts[2] = {id, said};
	int64_t until = now_ms() + LONGEST_MS;

	while (ends[0].fd >= 0 || ends[1].fd >= 0) {
		int64_t left = until - now_ms();

		if (left <= 0 || (poll(ends, 2, (int)left) < 0 && errno != EINTR))
			return false;
		for (int i = 0; i < 2; i++) {
			char part[512];
			ssize_t got;

			if (ends[i].fd < 0 || !ends[i].revents)
				continue;
			got = read(ends[i].fd, part, sizeof(part));
			if (got <= 0)
				ends[i].fd = -1;
			else if (texts[i]->len + (size_t)got < texts[i]->limit)
				text_add_bytes(texts[i], part, (size_t)got);
		}
	}
	return true;
}

/* The first complaint of a command, without the command's name and the word "error". */
static void first_error(const char *said, char why[AGAIN_WHY_MAX])
{
	static const char mark[] = "error: ";
	const char *line = strstr(said, mark);
	int len;

	if (strstr(said, "Batch script is empty")) {
		snprintf(why, AGAIN_WHY_MAX,
			 "its script came through a pipe, which can be read once only; give "
			 "sbatch a file");
		return;
	}
	line = line ? line + strlen(mark) : said;
	if (!strncmp(line, "berth: ", strlen("berth: ")))
		line += strlen("berth: ");
	len = (int)strcspn(line, "\n");
	if (len && line[len - 1] == '.')
		len--;
	snprintf(why, AGAIN_WHY_MAX, "%.*s", len ? len : (int)strlen("sbatch said nothing"),
		 len ? line : "sbatch said nothing");
}

static uint32_t spawn_and_listen(char **words, int in, char why[AGAIN_WHY_MAX])
{
	int id_ends[2] = {-1, -1}, error_ends[2] = {-1, -1};
	struct text id, said;
	uint64_t number = 0;
	pid_t child = 0;
	bool in_time = false;
	int status;

	text_init(&id, 16);
	text_init(&said, 16384);
	if (!pipe2(id_ends, O_CLOEXEC) && !pipe2(error_ends, O_CLOEXEC))
		child = start(words, in, id_ends[1], error_ends[1]);
	close(id_ends[1]);
	close(error_ends[1]);
	if (child) {
		in_time = listen_to(id_ends[0], &id, error_ends[0], &said);
		if (!in_time)
			kill(child, SIGKILL);
		while (waitpid(child, &status, 0) < 0 && errno == EINTR)
			;
	}
	close(id_ends[0]);
	close(error_ends[0]);
	if (id.len && id.data[id.len - 1] == '\n')
		id.data[id.len - 1] = '\0';
	if (!id.len || !parse_number(text_str(&id), UINT32_MAX, &number))
		number = 0;
	if (!child)
		snprintf(why, AGAIN_WHY_MAX, "sbatch could not be started for it");
	else if (!in_time)
		snprintf(why, AGAIN_WHY_MAX, "Slurm did not take it within %d s",
			 LONGEST_MS / 1000);
	else if (!number)
		first_error(text_str(&said), why);
	text_free(&id);
	text_free(&said);
	return (uint32_t)number;
}

uint32_t again_submit(uint64_t seconds, const char *tier, char why[AGAIN_WHY_MAX])
{
	char *block, **words = own_words(&block);
	int in = open_input();
	char text[24];
	uint32_t id = 0;

	snprintf(text, sizeof(text), "%" PRIu64, seconds);
	setenv(PREFLIGHT_SUBMIT, text, 1);
	if (*tier)
		setenv(PREFLIGHT_TIER, tier, 1);
	snprintf(why, AGAIN_WHY_MAX, "sbatch could not find its own words");
	if (words && in >= 0)
		id = spawn_and_listen(words, in, why);
	unsetenv(PREFLIGHT_SUBMIT);
	unsetenv(PREFLIGHT_TIER);
	if (in >= 0)
		close(in);
	free(words);
	free(block);
	return id;
}
