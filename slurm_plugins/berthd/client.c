/* SPDX-License-Identifier: Apache-2.0 */
#include "berthd/client.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

uint64_t monotonic_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* false: the time is up, or the other side is gone with nothing left to read. */
static bool wait_for(int fd, short events, uint64_t until_us)
{
	for (;;) {
		struct pollfd poll_fd = {.fd = fd, .events = events};
		uint64_t now = monotonic_us();
		struct timespec left;
		int rc;

		if (now >= until_us)
			return false;
		left.tv_sec = (time_t)((until_us - now) / 1000000);
		left.tv_nsec = (long)((until_us - now) % 1000000 * 1000);
		rc = ppoll(&poll_fd, 1, &left, NULL);
		if (rc > 0)
			return (poll_fd.revents & events) != 0;
		if (rc == 0 || errno != EINTR)
			return false;
	}
}

/*
 * SO_PEERCRED of a connected socket gives the process that called listen(): a socket file that
 * someone else put there is not believed.
 */
static bool listener_is(int fd, uid_t owner)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len))
		return false;
	return peer.uid == owner || peer.uid == 0;
}

static enum ask_result connect_to(int fd, const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	if (strlen(path) >= sizeof(address.sun_path))
		return ASK_BAD;
	memcpy(address.sun_path, path, strlen(path) + 1);
	if (!connect(fd, (const struct sockaddr *)&address, sizeof(address)))
		return ASK_OK;
	/* A non-blocking connect says EAGAIN when the listener's queue is full: it hangs. */
	return errno == EAGAIN ? ASK_TIMEOUT : ASK_DEAD;
}

static enum ask_result exchange(int fd, uint64_t until_us, const char *request, size_t request_len,
				char *reply, size_t size, size_t *reply_len)
{
	ssize_t n;

	while ((n = send(fd, request, request_len, MSG_NOSIGNAL)) < 0) {
		if (errno == EMSGSIZE)
			return ASK_BAD;
		if (errno != EAGAIN && errno != EINTR)
			return ASK_DEAD;
		if (!wait_for(fd, POLLOUT, until_us))
			return ASK_TIMEOUT;
	}
	for (;;) {
		if (!wait_for(fd, POLLIN, until_us))
			return ASK_TIMEOUT;
		/* MSG_TRUNC: the datagram's whole length, so that a longer one is seen. */
		n = recv(fd, reply, size, MSG_TRUNC);
		if (n >= 0)
			break;
		if (errno != EAGAIN && errno != EINTR)
			return ASK_DEAD;
	}
	if ((size_t)n > size)
		return ASK_BAD;
	*reply_len = (size_t)n;
	return n ? ASK_OK : ASK_DEAD;
}

void client_init(struct client *client)
{
	pthread_mutex_init(&client->busy, NULL);
	client->fd = -1;
}

static enum ask_result connect_new(int *fd, const char *path, uid_t owner)
{
	enum ask_result result;

	*fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (*fd < 0)
		return ASK_DEAD;
	result = connect_to(*fd, path);
	if (result == ASK_OK && !listener_is(*fd, owner))
		return ASK_BAD;
	return result;
}

static void hang_up(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

enum ask_result client_ask(struct client *client, const char *path, uid_t owner,
			   uint32_t deadline_ms, const char *request, size_t request_len,
			   char *reply, size_t size, size_t *reply_len)
{
	uint64_t until_us = monotonic_us() + 1000 * (uint64_t)deadline_ms;
	/* A call that comes while another waits for an answer has a connection of its own. */
	bool keeps = pthread_mutex_trylock(&client->busy) == 0;
	int fd = keeps ? client->fd : -1;
	enum ask_result result = ASK_DEAD;

	if (fd >= 0)
		result = exchange(fd, until_us, request, request_len, reply, size, reply_len);
	/* berthd has hung up since: it was started anew, or was not asked for long. */
	if (result == ASK_DEAD) {
		hang_up(&fd);
		result = connect_new(&fd, path, owner);
		if (result == ASK_OK)
			result =
			    exchange(fd, until_us, request, request_len, reply, size, reply_len);
	}
	/* An answer that comes too late must not be taken for the next one. */
	if (result != ASK_OK || !keeps)
		hang_up(&fd);
	if (keeps) {
		client->fd = fd;
		pthread_mutex_unlock(&client->busy);
	}
	return result;
}

void client_hang_up(struct client *client)
{
	/* The next call that uses it finds out. */
	if (pthread_mutex_trylock(&client->busy))
		return;
	hang_up(&client->fd);
	pthread_mutex_unlock(&client->busy);
}
