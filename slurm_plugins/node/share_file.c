/* SPDX-License-Identifier: Apache-2.0 */
#include "node/share_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "text/path_list.h"
#include "text/text.h"

#define HEADER "berth-share/1\n"
#define NAME_CHARACTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"

static bool fail(char error[SHARE_ERROR_MAX], const char *why)
{
	snprintf(error, SHARE_ERROR_MAX, "%s", why);
	return false;
}

static bool take_id(const char *value, uint32_t *id)
{
	uint64_t number;

	if (!parse_number(value, UINT32_MAX, &number))
		return false;
	*id = (uint32_t)number;
	return true;
}

static bool take_minors(struct share_file *file, char *list)
{
	if (file->minor_count)
		return false;
	while (list) {
		char *number = strsep(&list, ",");
		uint64_t minor;

		if (file->minor_count == GPU_POSITIONS ||
		    !parse_number(number, DEVICE_MINORS - 1, &minor))
			return false;
		file->minors[file->minor_count++] = (uint8_t)minor;
	}
	return true;
}

static bool take_variable(struct share_file *file, const char *name, const char *value,
			  bool prepended)
{
	size_t len = strlen(name);

	if (len == 0 || len > WIRE_KEY_MAX || name[strspn(name, NAME_CHARACTERS)] ||
	    (*name >= '0' && *name <= '9') || file->variable_count == SHARE_VARIABLES_MAX)
		return false;
	/* What is put before a list is the only word about it. */
	for (size_t i = 0; i < file->variable_count; i++)
		if ((prepended || file->variables[i].prepended) &&
		    !strcmp(file->variables[i].name, name))
			return false;
	file->variables[file->variable_count++] = (struct share_variable){name, value, prepended};
	return true;
}

/* It goes to a terminal. */
static void make_showable(char *why)
{
	size_t len = strlen(why);

	if (len > MESSAGE_MAX)
		why[MESSAGE_MAX] = '\0';
	for (char *s = why; *s; s++)
		if (*s < 0x20 || *s > 0x7e)
			*s = '?';
}

/* What a line may say once only. */
struct seen {
	bool job, uid, status;
};

/* false: a key that we know has a value that it must not have. Other keys are others' business. */
static bool take(struct share_file *file, struct seen *seen, char *key, char *value)
{
	bool again = false;
	bool ok = true;

	if (!strcmp(key, "job")) {
		again = seen->job;
		seen->job = ok = take_id(value, &file->job);
	} else if (!strcmp(key, "uid")) {
		again = seen->uid;
		seen->uid = ok = take_id(value, &file->uid);
	} else if (!strcmp(key, "status")) {
		again = seen->status;
		seen->status = true;
		file->degraded = !strcmp(value, "degraded");
		ok = file->degraded || !strcmp(value, "ok");
	} else if (!strcmp(key, "why")) {
		again = *file->why != '\0';
		make_showable(value);
		file->why = value;
	} else if (!strcmp(key, "minors")) {
		ok = take_minors(file, value);
	} else if (!strncmp(key, "set.", 4)) {
		ok = take_variable(file, key + 4, value, false);
	} else if (!strncmp(key, "unset.", 6)) {
		ok = take_variable(file, key + 6, NULL, false) && !*value;
	} else if (!strncmp(key, "prepend.", 8)) {
		ok = path_list_element_ok(value) && take_variable(file, key + 8, value, true);
	}
	return ok && !again;
}

bool share_file_parse(struct share_file *file, size_t len, uint32_t job,
		      char error[SHARE_ERROR_MAX])
{
	struct seen seen = {0};
	char *next = file->text + strlen(HEADER);

	file->job = file->uid = 0;
	file->degraded = false;
	file->why = "";
	file->minor_count = file->variable_count = 0;
	if (len > SHARE_FILE_MAX)
		return fail(error, "it is longer than 16384 bytes");
	file->text[len] = '\0';
	if (strlen(file->text) != len || strncmp(file->text, HEADER, strlen(HEADER)) != 0)
		return fail(error, "it does not begin with berth-share/1, or has a NUL byte");
	if (file->text[len - 1] != '\n')
		return fail(error, "its last line is cut off");
	while (*next) {
		char *line = strsep(&next, "\n");
		char *value = strchr(line, '=');

		if (!value)
			return fail(error, "a line is not key=value");
		*value++ = '\0';
		if (!unescape(value))
			return fail(error, "a value is not escaped as it must be");
		if (!take(file, &seen, line, value)) {
			snprintf(error, SHARE_ERROR_MAX, "%.*s stands twice or is wrong",
				 (int)strcspn(line, "."), line);
			return false;
		}
	}
	if (!seen.job || !seen.uid || !seen.status)
		return fail(error, "job, uid or status is missing");
	if (file->job != job)
		return fail(error, "it is another job's");
	return true;
}

static bool load(int fd, uid_t owner, size_t *len, char *text, char error[SHARE_ERROR_MAX])
{
	struct stat status;
	ssize_t n;

	if (fstat(fd, &status) || !S_ISREG(status.st_mode))
		return fail(error, "it is not a plain file");
	if (status.st_uid != owner || (status.st_mode & (S_IWGRP | S_IWOTH)))
		return fail(error, "others than root own it or may write it");
	/* It is replaced by rename, never written in place: one read sees all of it. */
	n = read(fd, text, SHARE_FILE_MAX + 1);
	if (n < 0 || n > SHARE_FILE_MAX)
		return fail(error, "it cannot be read, or is longer than 16384 bytes");
	*len = (size_t)n;
	return true;
}

/* O_NONBLOCK: what lies there may be a FIFO. */
static int open_share(const char *path)
{
	return open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
}

enum share_result share_file_load(const char *folder, uint32_t job, uid_t owner,
				  struct share_file *file, char error[SHARE_ERROR_MAX])
{
	char path[PATH_BYTES];
	size_t len = 0;
	bool ok;
	int fd;

	if (snprintf(path, sizeof(path), "%s/%" PRIu32, folder, job) >= (int)sizeof(path)) {
		fail(error, "its path is longer than 1023 bytes");
		return SHARE_BAD;
	}
	fd = open_share(path);
	if (fd < 0) {
		if (errno == ENOENT || errno == ENOTDIR)
			return SHARE_NONE;
		fail(error, errno == ELOOP ? "it is a link" : "it cannot be opened");
		return SHARE_BAD;
	}
	ok = load(fd, owner, &len, file->text, error) && share_file_parse(file, len, job, error);
	close(fd);
	return ok ? SHARE_READ : SHARE_BAD;
}

/* The file with one line changed. The old one is whole and good: it was parsed before. */
static void degraded_text(struct text *t, const char *contents, const char *why)
{
	static const char good[] = "\nstatus=ok\n";
	const char *status = strstr(contents, good);

	if (!status) {
		t->failed = true;
		return;
	}
	text_add_bytes(t, contents, (size_t)(status - contents) + 1);
	text_add(t, "status=degraded\nwhy=");
	text_add_escaped(t, why);
	text_add(t, status + strlen(good) - 1);
}

/* By rename: a reader sees the old file or the new one. The folder is root's alone. */
static bool replace_file(const char *folder, uint32_t job, const struct text *t)
{
	char path[PATH_BYTES];
	char draft[PATH_BYTES];
	bool ok;
	int fd;

	snprintf(path, sizeof(path), "%s/%" PRIu32, folder, job);
	if (snprintf(draft, sizeof(draft), "%s/.%" PRIu32 ".%d", folder, job, (int)getpid()) >=
	    (int)sizeof(draft))
		return false;
	fd = open(draft, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return false;
	ok = write(fd, t->data, t->len) == (ssize_t)t->len && !fchmod(fd, 0644);
	close(fd);
	ok = ok && !rename(draft, path);
	if (!ok)
		unlink(draft);
	return ok;
}

bool share_file_degrade(const char *folder, uint32_t job, uid_t owner, const char *why)
{
	char contents[SHARE_FILE_MAX + 2];
	char error[SHARE_ERROR_MAX];
	char path[PATH_BYTES];
	struct text t;
	size_t len = 0;
	bool ok;
	int fd;

	if (snprintf(path, sizeof(path), "%s/%" PRIu32, folder, job) >= (int)sizeof(path))
		return false;
	fd = open_share(path);
	if (fd < 0)
		return false;
	ok = load(fd, owner, &len, contents, error);
	close(fd);
	contents[ok ? len : 0] = '\0';
	text_init(&t, SHARE_FILE_MAX);
	degraded_text(&t, contents, why);
	ok = ok && !t.failed && replace_file(folder, job, &t);
	text_free(&t);
	return ok;
}
