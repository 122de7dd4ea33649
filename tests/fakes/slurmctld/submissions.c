/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submissions and changes of many kinds through the whole plugin, beside a berthd in the same
 * process that answers in every way: what the plugin keeps of each is seen by valgrind, ASan and
 * TSan.
 *
 * usage: submissions SOCKET COUNT THREADS    BERTH_CONF names a berth.conf with this socket
 *
 * Prints how many bytes more are in use after COUNT calls than after a first round, and how many
 * places were taken.
 */
#include <inttypes.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "job_submit/job_submit.h"

int init(void);
int fini(void);
void *fake_job(void);
void fake_end(job_desc_msg_t *job);
int fake_set(job_desc_msg_t *job, const char *field, const char *value);
int fake_get(job_desc_msg_t *job, const char *field, char *value, size_t size);
void fake_flag(job_desc_msg_t *job, const char *entry);
int fake_submit(job_desc_msg_t *job, uint32_t uid, char *said, size_t size);
int fake_modify(job_desc_msg_t *job, const char *record, uint32_t uid, char *said, size_t size);

#define WARM_UP 1000
#define USER 12345

/* What berthd says, by the job's name; NULL hangs up. "@" is the nonce. */
static const struct answer {
	const char *name, *text;
} answers[] = {
    {"place", "berth/1 "
	      "place\nnonce=@\nnodes=n1\ngpus=3\nseats=1\nmessage=berth:%20n1\nsegment=state="
	      "placed%20id=0\n"},
    {"gang",
     "berth/1 "
     "place\nnonce=@\nnodes=n1,n2\ngpus=0,1\nseats=1\nexc_nodes=n3\nsegment=state=placed%20id=0\n"},
    {"share", "berth/1 place\nnonce=@\nnodes=n1\ngpus=3\nseats=0\nshare=30\nway=mps\nmem=1024\n"
	      "segment=state=placed%20id=0\n"},
    {"later",
     "berth/1 later\nnonce=@\nn=1\nk=1\nmessage=berth:%20waits\nsegment=state=later%20id=0\n"},
    {"pass", "berth/1 pass\nnonce=@\nsegment=state=passed%20id=0\nmessage=berth:%20left\n"},
    {"refuse", "berth/1 refuse\nnonce=@\nmessage=berth:%20never\n"},
    {"busy", "berth/1 busy\nnonce=@\nseconds=1\n"},
    {"wrong", "berth/1 place\nnonce=@\nnodes=n1\ngpus=99\nseats=1\nsegment=x\n"},
    {"rubbish", "hello @"},
    {"hang up", NULL},
};

/* One call: fields of the job, a flag, and for a change the record's name. */
static const struct call {
	const char *fields[8];
	const char *flag, *record;
} calls[] = {
    {{"name", "place", "tres_per_job", "gres/gpu:1"}, NULL, NULL},
    {{"name", "place", "tres_per_node", "gres/gpu:1,gres/nic:1", "extra", "mine"},
     "locality=any",
     NULL},
    {{"name", "place", "tres_per_task", "gres/gpu:1", "num_tasks", "1"}, NULL, NULL},
    {{"name", "place", "tres_per_job", "gres/gpu:v100:1", "features", "big"}, NULL, NULL},
    {{"name", "gang", "tres_per_node", "gres/gpu:2", "min_nodes", "2", "cpus_per_tres",
      "gres/gpu:4"},
     NULL,
     NULL},
    {{"name", "share"}, "gpu_share=30", NULL},
    {{"name", "later", "tres_per_job", "gres/gpu:1", "admin_comment", "ours"}, NULL, NULL},
    {{"name", "pass", "tres_per_job", "gres/gpu:1"}, "locality=nvlink", NULL},
    {{"name", "refuse", "tres_per_job", "gres/gpu:1"}, NULL, NULL},
    {{"name", "busy", "tres_per_job", "gres/gpu:1"}, NULL, NULL},
    {{"name", "wrong", "tres_per_job", "gres/gpu:1"}, NULL, NULL},
    {{"name", "hang up", "tres_per_job", "gres/gpu:1"}, "locality=any", NULL},
    {{"tres_per_node", "gres/gpu:g0:1"}, NULL, NULL},
    {{"tres_per_node", "xgres/seat:g0:1"}, NULL, NULL},
    {{"tres_per_job", "gres/gpu:v100:1,gres/gpu:h100:1"}, NULL, NULL},
    {{"tres_per_job", "gres/gpu:1"}, "gpu_share=900", NULL},
    {{"extra", "[berth/1 gpus=0]"}, NULL, NULL},
    {{"tres_per_node", NULL}, "locality=any", NULL},
    {{"extra", "mine"}, NULL, "JobId=18_3(21)"},
    {{"tres_per_node", "gres/gpu:g1:1"}, NULL, "JobId=18"},
    {{"num_tasks", "2", "features", "v100"}, NULL, "JobId=7"},
};
#define CALLS (sizeof(calls) / sizeof(calls[0]))

static _Atomic unsigned long places;

static const char *value_of(const char *request, const char *key, char *value, size_t size)
{
	char line[32];
	const char *found;

	snprintf(line, sizeof(line), "\n%s=", key);
	found = strstr(request, line);
	if (!found)
		return "";
	found += strlen(line);
	snprintf(value, size, "%.*s", (int)strcspn(found, "\n"), found);
	return value;
}

static const char *said_to(const char *request)
{
	char name[32];

	value_of(request, "name", name, sizeof(name));
	for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++)
		if (!strcmp(answers[i].name, name))
			return answers[i].text;
	return answers[0].text;
}

/* False to hang up. */
static bool hear(int connection)
{
	static char request[70000], reply[1024];
	ssize_t got = recv(connection, request, sizeof(request) - 1, 0);
	char nonce[32] = "";
	const char *text, *at;

	if (got <= 0)
		return false;
	request[got] = '\0';
	text = said_to(request);
	value_of(request, "nonce", nonce, sizeof(nonce));
	if (!text)
		return false;
	at = strchr(text, '@');
	snprintf(reply, sizeof(reply), "%.*s%s%s", (int)(at - text), text, nonce, at + 1);
	return send(connection, reply, strlen(reply), MSG_NOSIGNAL) > 0;
}

/* One thread for all connections: threads that come and go would change how much memory is in use.
 */
static void *serve(void *argument)
{
	struct pollfd files[64] = {{.fd = (int)(intptr_t)argument, .events = POLLIN}};
	nfds_t count = 1;

	while (poll(files, count, -1) >= 0) {
		if (files[0].revents) {
			int connection = accept(files[0].fd, NULL, NULL);

			/* Shut down, at the end of all. */
			if (connection < 0 || count == 64)
				break;
			files[count++] = (struct pollfd){.fd = connection, .events = POLLIN};
		}
		for (nfds_t i = count - 1; i > 0; i--) {
			if (!files[i].revents || hear(files[i].fd))
				continue;
			close(files[i].fd);
			files[i] = files[--count];
		}
	}
	while (count > 1)
		close(files[--count].fd);
	return NULL;
}

static int listening(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) ||
	    listen(listener, 64))
		abort();
	return listener;
}

static void one(size_t number)
{
	const struct call *call = &calls[number % CALLS];
	job_desc_msg_t *job = fake_job();
	char said[4096], nodes[64];

	for (size_t i = 0; i + 1 < 8 && call->fields[i] && call->fields[i + 1]; i += 2)
		if (!fake_set(job, call->fields[i], call->fields[i + 1]))
			abort();
	if (call->flag) {
		char entry[128];

		snprintf(entry, sizeof(entry), "_SLURM_SPANK_OPTION_berth_%s", call->flag);
		fake_flag(job, entry);
	}
	if (call->record) {
		fake_modify(job, call->record, USER, said, sizeof(said));
	} else {
		fake_set(job, "script", "#!/bin/sh");
		/* Many users: one whose requests are dear is set aside. */
		fake_submit(job, USER + (uint32_t)number, said, sizeof(said));
		if (fake_get(job, "req_nodes", nodes, sizeof(nodes)))
			places++;
	}
	fake_end(job);
}

struct part {
	size_t first, count;
};

static void *many(void *argument)
{
	const struct part *part = argument;

	for (size_t i = 0; i < part->count; i++)
		one(part->first + i);
	return NULL;
}

int main(int argc, char **argv)
{
	size_t count, threads, before;
	pthread_t server, workers[16];
	struct part parts[16];
	int listener;

	if (argc != 4)
		return 2;
	count = strtoul(argv[2], NULL, 10);
	threads = strtoul(argv[3], NULL, 10);
	if (threads < 1 || threads > 16)
		return 2;
	listener = listening(argv[1]);
	if (pthread_create(&server, NULL, serve, (void *)(intptr_t)listener))
		abort();
	init();
	for (size_t i = 0; i < WARM_UP; i++)
		one(i);
	before = mallinfo2().uordblks;
	for (size_t i = 0; i < threads; i++) {
		parts[i] = (struct part){WARM_UP + i * (count / threads), count / threads};
		if (threads == 1)
			many(&parts[i]);
		else if (pthread_create(&workers[i], NULL, many, &parts[i]))
			abort();
	}
	for (size_t i = 0; threads > 1 && i < threads; i++)
		pthread_join(workers[i], NULL);
	printf("bytes=%zd places=%lu\n", (ssize_t)(mallinfo2().uordblks - before), places);
	fini();
	shutdown(listener, SHUT_RDWR);
	pthread_join(server, NULL);
	close(listener);
	return 0;
}
