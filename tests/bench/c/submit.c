/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submits batch jobs through libslurm and prints how long each took, in microseconds, one a line.
 * The last line says how long all of it took: "total MICROSECONDS FAILED".
 *
 * Processes, not threads: libslurm keeps its error in one errno and its sockets to itself.
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

struct plan {
	long jobs;
	long processes;
	char tres[64];
	char form; /* j: --gpus, n: --gpus-per-node, t: --gpus-per-task */
	long begin_in;
	const char *partition;
	const char *node;
	const char *comment;
	const char *script;
	char flag[256];
	bool held;
	char own; /* each job's own: l: time limit, m: memory; 0: nothing */
	long first;
};

static uint64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static bool submit_one(const struct plan *plan, long at)
{
	static char *environment[] = {"PATH=/usr/bin:/bin", NULL};
	char *flags[] = {(char *)plan->flag, NULL};
	job_desc_msg_t job;
	submit_response_msg_t *response = NULL;
	int rc;

	slurm_init_job_desc_msg(&job);
	job.name = "bench";
	job.script = (char *)plan->script;
	job.work_dir = "/tmp";
	job.std_out = "/dev/null";
	job.environment = environment;
	job.env_size = 1;
	job.user_id = getuid();
	job.group_id = getgid();
	job.min_cpus = 1;
	job.time_limit = plan->own == 'l' ? 10 + (uint32_t)(plan->first + at) : 10;
	if (plan->own == 'm')
		job.pn_min_memory = 100 + (uint64_t)(plan->first + at);
	job.partition = (char *)plan->partition;
	if (plan->begin_in)
		job.begin_time = time(NULL) + plan->begin_in;
	if (plan->held)
		job.priority = 0;
	if (plan->node) {
		job.req_nodes = (char *)plan->node;
		job.min_nodes = job.max_nodes = 1;
	}
	job.extra = job.admin_comment = (char *)plan->comment;
	if (*plan->flag) {
		job.spank_job_env = flags;
		job.spank_job_env_size = 1;
	}
	if (*plan->tres && plan->form == 'n')
		job.tres_per_node = (char *)plan->tres;
	else if (*plan->tres && plan->form == 't')
		job.tres_per_task = (char *)plan->tres;
	else if (*plan->tres)
		job.tres_per_job = (char *)plan->tres;
	if (plan->form == 't')
		job.num_tasks = 1;
	rc = slurm_submit_batch_job(&job, &response);
	if (rc != SLURM_SUCCESS)
		return false;
	slurm_free_submit_response_response_msg(response);
	return true;
}

/* One worker: its latencies go through the pipe, 0 for a failure. */
static void work(const struct plan *plan, long jobs, int out)
{
	bool told = false;

	for (long i = 0; i < jobs; i++) {
		uint64_t started = now_us();
		bool ok = submit_one(plan, i);
		uint64_t spent = ok ? now_us() - started : 0;

		if (!ok && !told)
			fprintf(stderr, "submit: %s\n", slurm_strerror(errno));
		told |= !ok;
		if (write(out, &spent, sizeof(spent)) != sizeof(spent))
			_exit(1);
	}
	_exit(0);
}

static long number(const char *s)
{
	char *end;
	long n = strtol(s, &end, 10);

	if (*end || end == s || n < 0) {
		fprintf(stderr, "submit: want a whole number, not \"%s\"\n", s);
		exit(2);
	}
	return n;
}

static void usage(void)
{
	fputs("usage: submit -n JOBS [-P PROCESSES] [-g GPUS] [-f job|node|task] [-b SECONDS]\n"
	      "              [-p PARTITION] [-w NODE] [-c TEXT] [-F FLAG=VALUE] [-H]\n"
	      "              [-m limit|memory [-s FIRST]] [-L LINES]\n"
	      "  -g GPUS    such as 2 or a100:2      -f how they are asked for (job: --gpus)\n"
	      "  -b SECONDS the job begins no earlier than that from now\n"
	      "  -w NODE    on that node alone       -c TEXT extra and admin comment\n"
	      "  -F         a flag of Berth, such as locality=nvlink      -H submit held\n"
	      "  -m         each has a time limit, or an amount of memory, of its own;\n"
	      "             -s leaves out the first FIRST\n"
	      "  -L LINES   so many lines of \"#SBATCH\" stand in its script\n",
	      stderr);
	exit(2);
}

static const char *long_script(long lines)
{
	static const char first[] = "#!/bin/sh\n", line[] = "#SBATCH\n", last[] = "exit 0\n";
	size_t step = strlen(line);
	char *script = malloc(sizeof(first) + step * (size_t)lines + sizeof(last));
	char *at = script;

	if (!script) {
		perror("submit: malloc");
		exit(1);
	}
	at = stpcpy(at, first);
	for (long i = 0; i < lines; i++)
		at = stpcpy(at, line);
	stpcpy(at, last);
	return script;
}

static void read_flag(const char *argument, struct plan *plan)
{
	snprintf(plan->flag, sizeof(plan->flag), "_SLURM_SPANK_OPTION_berth_%s", argument);
	for (char *s = plan->flag; *s && *s != '='; s++)
		if (*s == '-')
			*s = '_';
}

static void read_arguments(int argc, char **argv, struct plan *plan)
{
	int option;

	while ((option = getopt(argc, argv, "n:P:g:f:b:p:w:c:F:Hm:s:L:")) != -1) {
		switch (option) {
		case 'n':
			plan->jobs = number(optarg);
			break;
		case 'P':
			plan->processes = number(optarg);
			break;
		case 'g':
			snprintf(plan->tres, sizeof(plan->tres), "gres/gpu:%s", optarg);
			break;
		case 'f':
			plan->form = optarg[0];
			break;
		case 'b':
			plan->begin_in = number(optarg);
			break;
		case 'p':
			plan->partition = optarg;
			break;
		case 'w':
			plan->node = optarg;
			break;
		case 'c':
			plan->comment = optarg;
			break;
		case 'F':
			read_flag(optarg, plan);
			break;
		case 'H':
			plan->held = true;
			break;
		case 'm':
			plan->own = optarg[0];
			break;
		case 's':
			plan->first = number(optarg);
			break;
		case 'L':
			plan->script = long_script(number(optarg));
			break;
		default:
			usage();
		}
	}
	if (plan->jobs < 1 || plan->processes < 1 || plan->processes > PROCESSES_MAX ||
	    !strchr("jnt", plan->form) || (plan->own && !strchr("lm", plan->own)) || optind != argc)
		usage();
}

int main(int argc, char **argv)
{
	struct plan plan = {.processes = 1, .form = 'j', .script = "#!/bin/sh\nexit 0\n"};
	uint64_t started, spent;
	long failed = 0;
	int ends[2];

	read_arguments(argc, argv, &plan);
	slurm_init(NULL);
	if (pipe(ends)) {
		perror("submit: pipe");
		return 1;
	}
	started = now_us();
	for (long i = 0; i < plan.processes; i++) {
		long share = plan.jobs / plan.processes + (i < plan.jobs % plan.processes);
		pid_t child = fork();

		if (child < 0) {
			perror("submit: fork");
			return 1;
		}
		if (child == 0)
			work(&plan, share, ends[1]);
	}
	close(ends[1]);
	while (read(ends[0], &spent, sizeof(spent)) == sizeof(spent)) {
		if (spent)
			printf("%" PRIu64 "\n", spent);
		else
			failed++;
	}
	while (wait(NULL) > 0)
		;
	printf("total %" PRIu64 " %ld\n", now_us() - started, failed);
	return failed ? 1 : 0;
}
