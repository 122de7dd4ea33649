/* SPDX-License-Identifier: Apache-2.0 */
#include "berthd/hook_log.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

int hook_log_open(const char *path)
{
	return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
}

void hook_log_write(int fd, uint64_t spent_us, const char *outcome, uid_t uid)
{
	struct timespec now;
	char line[128];
	ssize_t written;
	int len;

	clock_gettime(CLOCK_REALTIME, &now);
	len = snprintf(line, sizeof(line), "%lld.%06ld\t%" PRIu64 "\t%s\t%u\n",
		       (long long)now.tv_sec, now.tv_nsec / 1000, spent_us, outcome, uid);
	if (len <= 0 || (size_t)len >= sizeof(line))
		return;
	/* A full disk must not hold up a submission, and there is no one to tell. */
	written = write(fd, line, (size_t)len);
	(void)written;
}
