/* SPDX-License-Identifier: Apache-2.0 */
#include "pin/pinned.h"

#include <endian.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "text/text.h"

#define HEADER_LEN 16 /* the NUL is part of it */

#define ENTRY_LEN (2 * sizeof(uint32_t))

struct list {
	int fd;
	size_t count; /* 0 where this is no such file */
};

static void read_header(struct list *list)
{
	char header[HEADER_LEN];
	struct stat status;

	if (fstat(list->fd, &status) || !S_ISREG(status.st_mode) ||
	    status.st_size < (off_t)HEADER_LEN ||
	    pread(list->fd, header, HEADER_LEN, 0) != (ssize_t)HEADER_LEN ||
	    memcmp(header, "berth-pinned/2\n", HEADER_LEN) != 0)
		return;
	list->count = ((size_t)status.st_size - HEADER_LEN) / ENTRY_LEN;
}

static bool read_entry(const struct list *list, size_t place, uint32_t *id, uint32_t *kinds)
{
	uint32_t entry[2];

	if (pread(list->fd, entry, ENTRY_LEN, (off_t)(HEADER_LEN + place * ENTRY_LEN)) !=
	    (ssize_t)ENTRY_LEN)
		return false;
	*id = le32toh(entry[0]);
	*kinds = le32toh(entry[1]);
	return true;
}

/* Read, not mapped: a file that is cut short under us must not be slurmctld's SIGBUS. */
static uint32_t search(const struct list *list, uint32_t job_id)
{
	size_t low = 0, high = list->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		uint32_t id, kinds;

		if (!read_entry(list, middle, &id, &kinds))
			return 0;
		if (id == job_id)
			return kinds;
		if (id < job_id)
			low = middle + 1;
		else
			high = middle;
	}
	return 0;
}

uint32_t pinned_kinds(const char *path, uint32_t job_id)
{
	/* Non-blocking: what lies there may be a FIFO. */
	struct list list = {.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
	uint32_t kinds;

	if (list.fd < 0)
		return 0;
	read_header(&list);
	kinds = search(&list, job_id);
	close(list.fd);
	return kinds;
}

/* The number that begins at `start`; 0: none. */
static uint32_t leading_number(const char *start)
{
	char digits[11];
	size_t len = strspn(start, "0123456789");
	uint64_t id;

	if (len >= sizeof(digits))
		return 0;
	memcpy(digits, start, len);
	digits[len] = '\0';
	return parse_number(digits, UINT32_MAX, &id) ? (uint32_t)id : 0;
}

static const char *behind_job_id(const char *name)
{
	return strncmp(name, "JobId=", 6) != 0 ? name : name + 6;
}

uint32_t pinned_record_id(const char *name)
{
	const char *start = strchr(name, '(');

	return leading_number(start ? start + 1 : behind_job_id(name));
}

uint32_t pinned_array_id(const char *name)
{
	const char *start = behind_job_id(name);

	return start[strspn(start, "0123456789")] == '_' ? leading_number(start) : 0;
}
