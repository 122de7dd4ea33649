/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job_submit/echo: the bare peer of the hook benchmark. It sends the same request text over the
 * same kind of socket within the same deadline, and ignores the answer. What it costs is the floor.
 *
 * BERTH_ECHO_SOCKET and BERTH_ECHO_LOG in slurmctld's environment name its socket and its log.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "berthd/hook_log.h"
#include "job_submit/job_submit.h"

#define DEADLINE_MS 50

const char plugin_name[] = "Echo job_submit plugin";
const char plugin_type[] = "job_submit/echo";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;

typedef struct job_record job_record_t;

static struct sockaddr_un address = {.sun_family = AF_UNIX};
static int log_fd = -1;

int init(void);
int fini(void);
int job_submit(job_desc_msg_t *job, uint32_t submit_uid, char **err_msg);
int job_modify(job_desc_msg_t *job, job_record_t *record, uint32_t submit_uid, char **err_msg);

int init(void)
{
	const char *path = getenv("BERTH_ECHO_SOCKET");
	const char *log = getenv("BERTH_ECHO_LOG");

	if (!path)
		path = "/run/berth/echo.sock";
	if (strlen(path) >= sizeof(address.sun_path)) {
		slurm_error("echo: BERTH_ECHO_SOCKET is longer than a socket's path may be");
		return SLURM_ERROR;
	}
	memcpy(address.sun_path, path, strlen(path) + 1);
	if (log)
		log_fd = hook_log_open(log);
	return SLURM_SUCCESS;
}

int fini(void)
{
	if (log_fd >= 0)
		close(log_fd);
	return SLURM_SUCCESS;
}

static uint64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static const char *echo(const struct text *request)
{
	char answer[REPLY_MAX_BYTES];
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct pollfd ready = {.fd = fd, .events = POLLIN};
	const char *outcome = "dead";

	if (fd < 0)
		return outcome;
	if (!connect(fd, (const struct sockaddr *)&address, sizeof(address)) &&
	    send(fd, text_str(request), request->len, MSG_NOSIGNAL) > 0) {
		outcome = "timeout";
		if (poll(&ready, 1, DEADLINE_MS) == 1 && recv(fd, answer, sizeof(answer), 0) > 0)
			outcome = "pass";
	}
	close(fd);
	return outcome;
}

int job_submit(job_desc_msg_t *job, uint32_t submit_uid, char **err_msg)
{
	uint64_t started = now_us();
	struct reply_expected expected = {0};
	struct flag_values flags;
	struct tres_found found;
	struct text request;
	const char *outcome;
	int wrong;

	(void)err_msg;
	request_scan(job, &found);
	if (!found.gpu)
		return SLURM_SUCCESS;
	flags_read(job, &flags, &wrong);
	text_init(&request, REQUEST_MAX_BYTES);
	request_write(job, submit_uid, "0123456789abcdef", &flags, &expected, &request);
	outcome = echo(&request);
	text_free(&request);
	flags_free(&flags);
	if (log_fd >= 0)
		hook_log_write(log_fd, now_us() - started, outcome, submit_uid);
	return SLURM_SUCCESS;
}

int job_modify(job_desc_msg_t *job, job_record_t *record, uint32_t submit_uid, char **err_msg)
{
	(void)job;
	(void)record;
	(void)submit_uid;
	(void)err_msg;
	return SLURM_SUCCESS;
}
