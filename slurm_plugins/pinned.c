/* SPDX-License-Identifier: Apache-2.0 */
#include "pinned.h"

#include <endian.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "text.h"

#define HEADER "berth-pinned/1\n"
#define HEADER_LEN sizeof(HEADER) /* the NUL is part of it */
#define ID_LEN sizeof(uint32_t)

/* How many ids follow the header; 0 where this is no such file. */
static size_t count_ids(int fd)
{
	char header[HEADER_LEN];
	struct stat status;

	if (fstat(fd, &status) || !S_ISREG(status.st_mode) || status.st_size < (off_t)HEADER_LEN ||
	    pread(fd, header, HEADER_LEN, 0) != (ssize_t)HEADER_LEN ||
	    memcmp(header, HEADER, HEADER_LEN))
		return 0;
	return ((size_t)status.st_size - HEADER_LEN) / ID_LEN;
}

/* Read, not mapped: a file that is cut short under us must not be slurmctld's SIGBUS. */
static bool search(int fd, size_t count, uint32_t job_id)
{
	size_t low = 0, high = count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		uint32_t id;

		if (pread(fd, &id, ID_LEN, (off_t)(HEADER_LEN + middle * ID_LEN)) !=
		    (ssize_t)ID_LEN)
			return false;
		id = le32toh(id);
		if (id == job_id)
			return true;
		if (id < job_id)
			low = middle + 1;
		else
			high = middle;
	}
	return false;
}

bool pinned_lists(const char *path, uint32_t job_id)
{
	/* Non-blocking: what lies there may be a FIFO. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	bool listed;

	if (fd < 0)
		return false;
	listed = search(fd, count_ids(fd), job_id);
	close(fd);
	return listed;
}

uint32_t pinned_record_id(const char *name)
{
	const char *start = strchr(name, '(');
	char digits[11];
	uint64_t id;
	size_t len;

	if (start)
		start++;
	else
		start = strncmp(name, "JobId=", 6) ? name : name + 6;
	len = strspn(start, "0123456789");
	if (len >= sizeof(digits))
		return 0;
	memcpy(digits, start, len);
	digits[len] = '\0';
	return parse_number(digits, UINT32_MAX, &id) ? (uint32_t)id : 0;
}
