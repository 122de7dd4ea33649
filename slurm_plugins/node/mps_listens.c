/* SPDX-License-Identifier: Apache-2.0 */
#include "node/mps_listens.h"

#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/*
 * The kernel looks for the process that has a socket open before it compares the kinds of both
 * ends. So a socket of a kind that MPS never uses finds out whether one has: nothing is connected,
 * nothing has to be accepted by a daemon that may hang, and nothing gets into its log.
 */
bool mps_listens(const char *folder)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int problem;
	int fd;

	if (snprintf(address.sun_path, sizeof(address.sun_path), "%s/control", folder) >=
	    (int)sizeof(address.sun_path))
		return false;
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* That is not MPS's fault, and no reason to stop a job. */
	if (fd < 0)
		return true;
	problem = connect(fd, (const struct sockaddr *)&address, sizeof(address)) ? errno : 0;
	close(fd);
	return problem == EPROTOTYPE;
}
