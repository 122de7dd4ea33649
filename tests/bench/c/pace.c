/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submits batch jobs at a pace, from several processes, and says what became of them. Prints how
 * long each submission took, in microseconds, one a line; the last line is "total REQUESTS TAKEN".
 *
 * With -d they are the dearest requests that Slurm itself looks at and refuses: each is of a kind
 * never seen before, and excludes a node that does not exist, so none stays in the queue.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROCESSES_MAX 64
#define COMPONENTS_MAX 128
/* As the plugin's bounds of a request have it, and the partitions of the benchmark's cluster. */
#define NODE_LIST_MAX 32768
#define NAMES_MAX 8192
#define PARTITIONS 64
#define GANG_NODES 129

struct plan {
	double rate;
	double seconds;
	long processes;
	long components; /* of each submission: a heterogeneous job is one, with as many requests */
	bool dear;
};

/* What each process tells of a submission. */
struct done {
	uint64_t us;
	uint32_t requests;
	bool taken;
};

struct texts {
	char partitions[PARTITIONS * 4];
	char excluded[NODE_LIST_MAX + 1];
};

static uint64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void wait_until(uint64_t due_us)
{
	struct timespec due = {(time_t)(due_us / 1000000), (long)(due_us % 1000000 * 1000)};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR)
		;
}

static void fill(job_desc_msg_t *job)
{
	static char *environment[] = {"PATH=/usr/bin:/bin", NULL};

	slurm_init_job_desc_msg(job);
	job->name = "pace";
	job->script = "#!/bin/sh\nexit 0\n";
	job->work_dir = "/tmp";
	job->std_out = "/dev/null";
	job->environment = environment;
	job->env_size = 1;
	job->user_id = getuid();
	job->group_id = getgid();
	job->min_cpus = 1;
	job->time_limit = 10;
	job->partition = "gpu";
	job->tres_per_job = "gres/gpu:1";
}

/* All partitions, beginning with another each time. */
static void list_partitions(char *out, long at)
{
	for (long i = 0; i < PARTITIONS; i++)
		out += sprintf(out, "%sp%ld", i ? "," : "", 1 + (at + i) % PARTITIONS);
}

/* As many names as one request may exclude, each written out, up to the longest list. */
static void list_nodes(char *out, long at)
{
	int used = sprintf(out, "x[");

	for (long i = 0; used < NODE_LIST_MAX - 8; i++)
		used += sprintf(out + used, "%s%ld", i ? "," : "", 100 + (at + i) % 900);
	strcpy(out + used, "]");
}

/*
 * Four shapes in turn: a gang in many partitions, such a gang with a long list of nodes, many
 * nodes in a short list, a gang that has to be close together.
 */
static void make_dear(job_desc_msg_t *job, struct texts *texts, long at)
{
	static char *close_by[] = {"_SLURM_SPANK_OPTION_berth_locality=leaf", NULL};

	job->tres_per_job = NULL;
	job->tres_per_node = "gres/gpu:3";
	job->min_nodes = job->max_nodes = GANG_NODES;
	job->min_cpus = GANG_NODES;
	job->pn_min_memory = 100 + (uint64_t)at % 100000;
	job->exc_nodes = texts->excluded;
	snprintf(texts->excluded, sizeof(texts->excluded), "x%ld", at);
	list_partitions(texts->partitions, at);
	switch (at % 4) {
	case 0:
		job->partition = texts->partitions;
		break;
	case 1:
		job->partition = texts->partitions;
		list_nodes(texts->excluded, at);
		break;
	case 2:
		snprintf(texts->excluded, sizeof(texts->excluded), "x[%ld-%ld]", at,
			 at + NAMES_MAX - 2);
		break;
	default:
		job->spank_job_env = close_by;
		job->spank_job_env_size = 1;
		break;
	}
}

static bool submit_several(const struct plan *plan, long at)
{
	static job_desc_msg_t jobs[COMPONENTS_MAX];
	static struct texts texts[COMPONENTS_MAX];
	submit_response_msg_t *response = NULL;
	list_t *list = slurm_list_create(NULL);
	int rc;

	for (long i = 0; i < plan->components; i++) {
		fill(&jobs[i]);
		if (plan->dear)
			make_dear(&jobs[i], &texts[i], at * plan->components + i);
		if (plan->components > 1)
			jobs[i].het_job_offset = (uint32_t)i;
		slurm_list_append(list, &jobs[i]);
	}
	rc = plan->components > 1 ? slurm_submit_batch_het_job(list, &response)
				  : slurm_submit_batch_job(&jobs[0], &response);
	slurm_list_destroy(list);
	if (rc == SLURM_SUCCESS)
		slurm_free_submit_response_response_msg(response);
	return rc == SLURM_SUCCESS;
}

/* One process. Where it is late it goes on at once, and does not make up for what it missed. */
static void work(const struct plan *plan, long which, int out)
{
	uint64_t every =
	    (uint64_t)(1e6 * (double)(plan->processes * plan->components) / plan->rate);
	uint64_t begun = now_us(), end = begun + (uint64_t)(1e6 * plan->seconds);
	uint64_t due = begun + every * (uint64_t)which / (uint64_t)plan->processes;
	bool told = false;

	for (long i = 0; due < end; i++) {
		struct done done = {.requests = (uint32_t)plan->components};
		uint64_t started;

		wait_until(due);
		started = now_us();
		if (started >= end)
			break;
		done.taken = submit_several(plan, i * plan->processes + which);
		done.us = now_us() - started;
		if (!done.taken && !told)
			fprintf(stderr, "pace: %s\n", slurm_strerror(errno));
		told |= !done.taken;
		if (write(out, &done, sizeof(done)) != sizeof(done))
			_exit(1);
		due = started - due > every ? started : due + every;
	}
	_exit(0);
}

static double number(const char *s, double most)
{
	char *end;
	double n = strtod(s, &end);

	if (*end || end == s || !(n > 0 && n <= most)) {
		fprintf(stderr, "pace: want a number above 0, and at most %g, not \"%s\"\n", most,
			s);
		exit(2);
	}
	return n;
}

static void usage(void)
{
	fputs("usage: pace -r REQUESTS_A_SECOND -s SECONDS [-P PROCESSES] [-c COMPONENTS] [-d]\n"
	      "  -c  of each submission, a heterogeneous job    -d  dear ones that Slurm refuses\n",
	      stderr);
	exit(2);
}

static void read_arguments(int argc, char **argv, struct plan *plan)
{
	int option;

	while ((option = getopt(argc, argv, "r:s:P:c:d")) != -1) {
		switch (option) {
		case 'r':
			plan->rate = number(optarg, 1e6);
			break;
		case 's':
			plan->seconds = number(optarg, 1e6);
			break;
		case 'P':
			plan->processes = (long)number(optarg, PROCESSES_MAX);
			break;
		case 'c':
			plan->components = (long)number(optarg, COMPONENTS_MAX);
			break;
		case 'd':
			plan->dear = true;
			break;
		default:
			usage();
		}
	}
	if (!(plan->rate > 0 && plan->seconds > 0) || optind != argc)
		usage();
}

int main(int argc, char **argv)
{
	struct plan plan = {.processes = 1, .components = 1};
	uint64_t requests = 0, taken = 0;
	struct done done;
	int ends[2];

	read_arguments(argc, argv, &plan);
	slurm_init(NULL);
	if (pipe(ends)) {
		perror("pace: pipe");
		return 1;
	}
	for (long i = 0; i < plan.processes; i++) {
		pid_t child = fork();

		if (child < 0) {
			perror("pace: fork");
			return 1;
		}
		if (child == 0)
			work(&plan, i, ends[1]);
	}
	close(ends[1]);
	while (read(ends[0], &done, sizeof(done)) == sizeof(done)) {
		printf("%" PRIu64 "\n", done.us);
		requests += done.requests;
		taken += done.taken ? done.requests : 0;
	}
	while (wait(NULL) > 0)
		;
	printf("total %" PRIu64 " %" PRIu64 "\n", requests, taken);
	return 0;
}
