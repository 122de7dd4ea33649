/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submits the jobs of a replay at their times: "replay_submit PROGRAM < plan >
 * log".
 *
 * A line of the plan, words separated by spaces ("-" for none), sorted by time:
 *   AT NAME SECONDS CLASS NODES GPUS CPUS LIMIT SWITCHES SWITCH_WAIT FLAGS
 * AT in seconds from the start, GPUS and CPUS on each node, LIMIT in minutes,
 * SWITCH_WAIT in seconds, FLAGS of Berth such as
 * app-class=mixed,locality=leaf@5. PROGRAM is the script's interpreter.
 *
 * A line of the log: NAME JOBID ASKED_AT LATENCY_US [ERROR], ASKED_AT in
 * seconds since 1970. Several processes take turns, so that one slow answer
 * does not delay the next job.
 */
#include <errno.h>
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

#define PROCESSES 4
#define FLAGS_MAX 8
/* Seconds for which a submission is tried again that slurmctld has cut off. */
#define PATIENCE 10

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
#define JOB_ID(response) ((response)->step_id.job_id)
#else
#define JOB_ID(response) ((response)->job_id)
#endif

struct line {
	double at;
	char name[32], seconds[32], class[32], flags[256];
	unsigned nodes, gpus, cpus, limit, switches, switch_wait;
};

static double now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_REALTIME, &at);
	return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static void sleep_until(double moment)
{
	struct timespec at = {.tv_sec = (time_t)moment};

	at.tv_nsec = (long)((moment - (double)at.tv_sec) * 1e9);
	while (clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &at, NULL) == EINTR)
		;
}

static bool read_line(struct line *line)
{
	char text[512];

	if (!fgets(text, sizeof(text), stdin))
		return false;
	if (sscanf(text, "%lf %31s %31s %31s %u %u %u %u %u %u %255s", &line->at, line->name,
		   line->seconds, line->class, &line->nodes, &line->gpus, &line->cpus, &line->limit,
		   &line->switches, &line->switch_wait, line->flags) != 11) {
		fprintf(stderr, "replay_submit: cannot read the line %s", text);
		exit(2);
	}
	return true;
}

/* As SPANK hands flags over; returns how many. */
static uint32_t spank_flags(const char *words, char texts[][128], char **flags)
{
	char copy[256], *rest, *word;
	uint32_t count = 0;

	snprintf(copy, sizeof(copy), "%s", strcmp(words, "-") ? words : "");
	for (word = strtok_r(copy, ",", &rest); word && count < FLAGS_MAX;
	     word = strtok_r(NULL, ",", &rest)) {
		for (char *s = word; *s && *s != '='; s++)
			if (*s == '-')
				*s = '_';
		snprintf(texts[count], sizeof(texts[count]), "_SLURM_SPANK_OPTION_berth_%s", word);
		flags[count] = texts[count];
		count++;
	}
	return count;
}

static void submit(const struct line *line, const char *program)
{
	static char *environment[] = {"PATH=/usr/bin:/bin", NULL};
	char texts[FLAGS_MAX][128], *flags[FLAGS_MAX + 1] = {NULL}, script[512], tres[32];
	submit_response_msg_t *response = NULL;
	job_desc_msg_t job;
	double asked;
	int rc;

	slurm_init_job_desc_msg(&job);
	snprintf(script, sizeof(script), "#!%s %s %s %s\n", program, line->seconds, line->class,
		 line->name);
	snprintf(tres, sizeof(tres), "gres/gpu:%u", line->gpus);
	job.name = (char *)line->name;
	job.script = script;
	job.work_dir = "/tmp";
	job.std_out = "/dev/null";
	job.environment = environment;
	job.env_size = 1;
	job.user_id = getuid();
	job.group_id = getgid();
	job.time_limit = line->limit;
	job.min_nodes = job.max_nodes = line->nodes;
	job.num_tasks = line->nodes;
	job.ntasks_per_node = 1;
	job.cpus_per_task = (uint16_t)line->cpus;
	job.min_cpus = line->nodes * line->cpus;
	if (line->gpus)
		job.tres_per_node = tres;
	if (line->switches) {
		job.req_switch = line->switches;
		job.wait4switch = line->switch_wait;
	}
	job.spank_job_env_size = spank_flags(line->flags, texts, flags);
	job.spank_job_env = job.spank_job_env_size ? flags : NULL;
	asked = now();
	/* A slurmctld that is restarted cuts off whom it has not answered: a user submits again. */
	while ((rc = slurm_submit_batch_job(&job, &response)) && errno == ECONNRESET &&
	       now() - asked < PATIENCE) {
		printf("%s\tcut off\n", line->name);
		sleep(1);
	}
	printf("%s\t%u\t%.3f\t%.0f%s%s\n", line->name, rc ? 0 : JOB_ID(response), asked,
	       (now() - asked) * 1e6, rc ? "\t" : "", rc ? slurm_strerror(errno) : "");
	fflush(stdout);
	if (!rc)
		slurm_free_submit_response_response_msg(response);
}

int main(int argc, char **argv)
{
	double started = now() + 0.5;
	struct line line;
	long number = 0;
	int own = 0;
	int children[PROCESSES];

	if (argc != 2) {
		fputs("usage: replay_submit PROGRAM < plan > log\n", stderr);
		return 2;
	}
	slurm_init(NULL);
	for (own = 0; own < PROCESSES; own++) {
		int ends[2];

		if (pipe(ends)) {
			perror("replay_submit: pipe");
			return 1;
		}
		if (fork() == 0) {
			dup2(ends[0], STDIN_FILENO);
			close(ends[0]);
			close(ends[1]);
			for (int other = 0; other < own; other++)
				close(children[other]);
			while (read_line(&line)) {
				sleep_until(started + line.at);
				submit(&line, argv[1]);
			}
			return 0;
		}
		close(ends[0]);
		children[own] = ends[1];
	}
	for (char text[512]; fgets(text, sizeof(text), stdin); number++)
		if (write(children[number % PROCESSES], text, strlen(text)) < 0)
			return 1;
	for (own = 0; own < PROCESSES; own++)
		close(children[own]);
	while (wait(NULL) > 0)
		;
	return 0;
}
