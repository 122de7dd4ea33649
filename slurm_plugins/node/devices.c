/* SPDX-License-Identifier: Apache-2.0 */
#include "node/devices.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "text/limits.h"

enum device_state device_probe(unsigned int minor)
{
	char path[32];

	snprintf(path, sizeof(path), "/dev/nvidia%u", minor);
	if (!access(path, R_OK | W_OK))
		return DEVICE_OPEN;
	/* The cgroup says EPERM, the file's own mode EACCES. */
	return errno == EPERM || errno == EACCES ? DEVICE_DENIED : DEVICE_NONE;
}

enum devices_verdict devices_check(const uint8_t *minors, size_t count, bool whole,
				   enum device_state (*probe)(unsigned int minor),
				   unsigned int *minor)
{
	enum devices_verdict verdict = DEVICES_RIGHT;

	for (unsigned int i = 0; i < DEVICE_MINORS; i++) {
		bool ours = memchr(minors, (int)i, count);
		bool open;

		if (ours && !whole)
			continue;
		open = probe(i) == DEVICE_OPEN;
		if (ours == open)
			continue;
		/* The worse of the two: another job's GPU. */
		if (open || verdict == DEVICES_RIGHT)
			*minor = i;
		if (open)
			return DEVICES_FOREIGN;
		verdict = DEVICES_MISSING;
	}
	return verdict;
}
