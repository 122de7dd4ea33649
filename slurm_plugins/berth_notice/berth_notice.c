/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A part of the node's Epilog: tells berthd that a job ends here and waits for its word, so that
 * the jobs that wait for this node are pinned before Slurm gives it away. Slurm drains a node
 * whose Epilog fails, and gives the node to no job while it runs. So this program is silent, ends
 * within 300 ms whatever the network, munged or berthd do, tries nothing twice, and exits with 0.
 * The Epilog of a job without GPUs does not wait for the answer.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "config/config.h"
#include "node/share_file.h"
#include "text/text.h"

#ifndef DEADLINE_MS /* A test has its own: it may run on a machine that is slow. */
#define DEADLINE_MS 300
#endif
#define HOSTS_MAX 4
#define NODE_MAX 255
#define ANSWER_DONE "berth/1 done\n"

/* Where berthd may be: on the first controller or on a backup. */
struct host {
	const struct addrinfo *next; /* addresses not tried yet */
	int fd;			     /* -1: out of the game */
	bool told;
	char answer[64];
	size_t answer_len;
};

struct job {
	uint32_t id;
	const char *node;
	bool degraded; /* its share could not be set up: berthd finds it another place */
	struct notice_config config;
};

/* Since the start, when the first host had been told: what came before was not berthd's time. */
static _Atomic int64_t told_us = -1;
static struct timespec began;

static struct {
	pthread_mutex_t lock;
	pthread_cond_t ended;
	const char *outcome;
} result = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int64_t spent_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)(now.tv_sec - began.tv_sec) * 1000000 +
	       (now.tv_nsec - began.tv_nsec) / 1000;
}

/*
 * NULL: no libmunge, or no munged. The library is loaded by hand, so that neither the build nor a
 * node without munge needs it.
 */
static char *credential_for(const struct job *job, const char *payload)
{
	enum { MUNGE_OPT_SOCKET = 8 };
	void *library = dlopen("libmunge.so.2", RTLD_NOW);
	int (*encode)(char **credential, void *context, const void *payload, int len);
	int (*set)(void *context, int option, ...);
	void *(*create)(void);
	void *context = NULL;
	char *credential = NULL;

	if (!library)
		return NULL;
	*(void **)&encode = dlsym(library, "munge_encode");
	*(void **)&create = dlsym(library, "munge_ctx_create");
	*(void **)&set = dlsym(library, "munge_ctx_set");
	if (!encode || !create || !set)
		return NULL;
	if (*job->config.munge_socket) {
		context = create();
		if (!context || set(context, MUNGE_OPT_SOCKET, job->config.munge_socket))
			return NULL;
	}
	if (encode(&credential, context, payload, (int)strlen(payload)))
		return NULL;
	return credential;
}

static void leave(struct host *host)
{
	if (host->fd >= 0)
		close(host->fd);
	host->fd = -1;
}

/* Begin a connection to the next address that does not refuse at once. */
static void try_next(struct host *host)
{
	leave(host);
	while (host->next && host->fd < 0) {
		const struct addrinfo *address = host->next;

		host->next = address->ai_next;
		host->fd =
		    socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		if (host->fd < 0)
			continue;
		if (connect(host->fd, address->ai_addr, address->ai_addrlen) &&
		    errno != EINPROGRESS)
			leave(host);
	}
}

static size_t find_hosts(const struct notice_config *config, struct host hosts[HOSTS_MAX])
{
	static const struct addrinfo want = {.ai_socktype = SOCK_STREAM,
					     .ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG};
	char names[CONFIG_TEXT_MAX + 1];
	char port[16];
	char *rest = names;
	char *name;
	size_t count = 0;

	memcpy(names, config->hosts, sizeof(names));
	snprintf(port, sizeof(port), "%" PRIu32, config->port);
	while (count < HOSTS_MAX && (name = strsep(&rest, ", "))) {
		struct addrinfo *found;

		if (!*name || getaddrinfo(name, port, &want, &found))
			continue;
		hosts[count] = (struct host){.next = found, .fd = -1};
		try_next(&hosts[count++]);
	}
	return count;
}

static void tell(struct host *host, const char *line, size_t len)
{
	int64_t none = -1;
	int problem = 0;
	socklen_t size = sizeof(problem);

	getsockopt(host->fd, SOL_SOCKET, SO_ERROR, &problem, &size);
	/* A line of some hundred bytes fits into a new connection's buffer. */
	if (problem || send(host->fd, line, len, MSG_NOSIGNAL) != (ssize_t)len)
		try_next(host);
	else {
		host->told = true;
		atomic_compare_exchange_strong(&told_us, &none, spent_us());
	}
}

/* Did this host say that all is done? It is left when it says anything else, or hangs up. */
static bool hear(struct host *host)
{
	size_t room = sizeof(host->answer) - 1 - host->answer_len;
	ssize_t n = recv(host->fd, host->answer + host->answer_len, room, 0);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (n > 0) {
		host->answer_len += (size_t)n;
		host->answer[host->answer_len] = '\0';
		if (!strcmp(host->answer, ANSWER_DONE))
			return true;
		if (!strchr(host->answer, '\n') && (size_t)n < room)
			return false;
	}
	leave(host);
	return false;
}

/* Every host is told at the same time, because a dead one is known by its silence only. */
static const char *ask(struct host *hosts, size_t count, const char *line, size_t len)
{
	bool told = false;

	for (;;) {
		struct pollfd files[HOSTS_MAX];
		size_t left = 0;

		for (size_t i = 0; i < count; i++) {
			left += hosts[i].fd >= 0;
			told = told || hosts[i].told;
			files[i].fd = hosts[i].fd;
			files[i].events = hosts[i].told ? POLLIN : POLLOUT;
			files[i].revents = 0;
		}
		if (!left)
			return told ? "no" : "unreachable";
		if (poll(files, count, DEADLINE_MS) < 0 && errno != EINTR)
			return "error";
		for (size_t i = 0; i < count; i++) {
			if (!files[i].revents)
				continue;
			if (!hosts[i].told)
				tell(&hosts[i], line, len);
			else if (hear(&hosts[i]))
				return "done";
		}
	}
}

static const char *notice(const struct job *job)
{
	struct host hosts[HOSTS_MAX];
	struct text line;
	char payload[NODE_MAX + 64];
	char *credential;
	size_t count = find_hosts(&job->config, hosts);

	if (!count)
		return "unreachable";
	snprintf(payload, sizeof(payload), "berth/1 epilog job=%" PRIu32 " node=%s", job->id,
		 job->node);
	text_init(&line, 4096);
	text_add(&line, payload);
	if (job->degraded)
		text_add(&line, " degraded");
	credential = credential_for(job, text_str(&line));
	/* Without one it is a hint, which berthd asks Slurm about, and says nothing of a share. */
	text_free(&line);
	text_add(&line, credential ? credential : payload);
	text_add(&line, "\n");
	if (line.failed)
		return "error";
	return ask(hosts, count, line.data, line.len);
}

static void *work(void *job)
{
	const char *outcome = notice(job);

	pthread_mutex_lock(&result.lock);
	result.outcome = outcome;
	pthread_cond_signal(&result.ended);
	pthread_mutex_unlock(&result.lock);
	return NULL;
}

/*
 * Resolving names, loading a library and asking munged each may block for long, and none of them
 * takes a deadline. So a thread does all that, and ends with the process.
 */
static const char *notice_in_time(struct job *job, const struct timespec *until)
{
	pthread_condattr_t monotonic;
	pthread_t thread;
	const char *outcome;

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&result.ended, &monotonic);
	if (pthread_create(&thread, NULL, work, job))
		return "error";
	pthread_mutex_lock(&result.lock);
	while (!result.outcome && !pthread_cond_timedwait(&result.ended, &result.lock, until))
		;
	outcome = result.outcome ? result.outcome : "timeout";
	pthread_mutex_unlock(&result.lock);
	return outcome;
}

static void write_log(const struct job *job, const char *outcome)
{
	/* O_NONBLOCK: a pipe without a reader must not hold up the Epilog. */
	int fd = open(job->config.log,
		      O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0640);

	if (fd >= 0)
		dprintf(fd, "%" PRIu32 "\t%s\t%" PRId64 "\t%s\t%" PRId64 "\n", job->id, job->node,
			spent_us(), outcome, atomic_load(&told_us));
}

/* berth.conf where the plugins look for it; slurmd has slurm.conf elsewhere where it is sent to it.
 */
static bool load_config(struct notice_config *config)
{
	char path[CONFIG_TEXT_MAX + 1];
	char error[CONFIG_ERROR_MAX];

	if (!config_path(getenv("SLURM_CONF"), path))
		return false;
	if (!getenv("BERTH_CONF") && access(path, F_OK))
		strcpy(path, "/etc/slurm/berth.conf");
	return config_load_notice(path, config, error);
}

/* Could the Prolog have left a share file? A full or read-only /run says no. */
static bool takes_files(const char *folder)
{
	int fd = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
	bool takes = fd >= 0 ? write(fd, "", 1) == 1 : errno == EOPNOTSUPP || errno == EISDIR;

	if (fd >= 0)
		close(fd);
	return takes;
}

/* A packed job or a guest: SPANK lets neither begin without a share file, but a host. */
static bool needs_share_file(void)
{
	static const char *const words[] = {" share=", " tier=opportunistic"};
	const char *extra = getenv("SLURM_JOB_EXTRA");
	const char *segment = extra ? strstr(extra, "[berth/1 ") : NULL;
	const char *end = segment ? segment + strcspn(segment, "]") : NULL;

	for (size_t i = 0; segment && i < sizeof(words) / sizeof(*words); i++) {
		const char *found = strstr(segment, words[i]);

		if (found && found < end)
			return true;
	}
	return false;
}

/*
 * A job whose Prolog could not even write that it failed was stopped like one whose Prolog did.
 * Where files can be written, none only says that berth-epilog has removed it.
 */
static bool share_failed(uint32_t job)
{
	static struct share_file file;
	char error[SHARE_ERROR_MAX];

	switch (share_file_load(SHARE_FOLDER, job, geteuid(), &file, error)) {
	case SHARE_READ:
		return file.degraded;
	case SHARE_NONE:
		return needs_share_file() && !takes_files(SHARE_FOLDER);
	default:
		return false;
	}
}

static bool load_job(struct job *job)
{
	static const char allowed[] =
	    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
	const char *context = getenv("SLURM_SCRIPT_CONTEXT");
	const char *id = getenv("SLURM_JOB_ID");
	uint64_t number;

	job->node = getenv("SLURMD_NODENAME");
	if (!id || !job->node || !parse_number(id, UINT32_MAX, &number) || !number)
		return false;
	/* Put into Prolog= by mistake, it would tell the end of a job that begins. */
	if (context && strcmp(context, "epilog_slurmd") != 0)
		return false;
	job->id = (uint32_t)number;
	job->degraded = share_failed(job->id);
	return *job->node && strlen(job->node) <= NODE_MAX &&
	       !job->node[strspn(job->node, allowed)];
}

/* A guest has no GPU in Slurm's books, but a berth. */
static bool had_gpus(void)
{
	const char *gpus = getenv("SLURM_JOB_GPUS");
	const char *extra = getenv("SLURM_JOB_EXTRA");

	return (gpus && *gpus) || (extra && strstr(extra, "[berth/"));
}

/*
 * Go on in a process of its own session, and let the Epilog end. Slurm kills what is left in the
 * Epilog's process group, and waits while a process has its output open.
 */
static void go_on_alone(void)
{
	pid_t between = fork();
	int null;

	if (between < 0)
		return;
	if (between > 0) {
		waitpid(between, NULL, 0);
		_exit(0);
	}
	if (setsid() < 0 || fork() != 0)
		_exit(0);
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	for (int fd = 0; fd < 3; fd++) {
		if (null < 0 || dup2(null, fd) < 0)
			_exit(0);
	}
}

int main(int argc, char **argv)
{
	static struct job job;
	struct timespec until;
	const char *outcome;

	if (argc > 1 && !strcmp(argv[1], "--help")) {
		puts("usage: berth-notice\n\n"
		     "Tells berthd that a job ends on this node. berth-epilog runs it, or slurmd\n"
		     "as an Epilog, without arguments: the job stands in the environment.");
		return 0;
	}
	clock_gettime(CLOCK_MONOTONIC, &began);
	until = began;
	until.tv_sec += DEADLINE_MS / 1000;
	until.tv_nsec += DEADLINE_MS % 1000 * 1000000L;
	if (until.tv_nsec >= 1000000000L) {
		until.tv_nsec -= 1000000000L;
		until.tv_sec++;
	}
	if (load_job(&job) && load_config(&job.config) && *job.config.hosts) {
		if (!job.degraded && !had_gpus())
			go_on_alone();
		outcome = notice_in_time(&job, &until);
		if (*job.config.log)
			write_log(&job, outcome);
	}
	/* Not exit(): the thread may be anywhere, even in a library's own lock. */
	_exit(0);
}
