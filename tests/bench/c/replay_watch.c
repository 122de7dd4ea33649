/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Follows a replay from slurmctld's records: "replay_watch SECONDS > log", a
 * look every SECONDS, until killed.
 *
 *   job   ID NAME STATE SUBMIT START END NODES REASON RESTARTS ADMIN_COMMENT
 * EXTRA   whenever one of them changed queue TIME PENDING RUNNING ENDED BUSY
 * TOTAL                               at each look
 *
 * Separated by tabs. BUSY and TOTAL are the machine's processor time since its
 * boot (1/100 s).
 */
#include <errno.h>
#include <inttypes.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
#define JOB_ID(job) ((job)->step_id.job_id)
#else
#define JOB_ID(job) ((job)->job_id)
#endif

#define JOBS_MAX 100000
#define LINE_MAX_BYTES 16384

static uint64_t seen[JOBS_MAX];

static uint64_t digest(const char *s)
{
	uint64_t hash = 14695981039346656037u; /* FNV-1a */

	for (; *s; s++)
		hash = (hash ^ (unsigned char)*s) * 1099511628211u;
	return hash;
}

static const char *text(const char *s)
{
	return s && *s ? s : "-";
}

static const char *state_name(uint32_t base)
{
	static const char *const names[JOB_END] = {
	    "pending", "running",   "suspended", "completed", "cancelled", "failed",
	    "timeout", "node_fail", "preempted", "boot_fail", "deadline",  "oom"};

	return base < JOB_END ? names[base] : "unknown";
}

static void tell_job(const slurm_job_info_t *job)
{
	static char line[LINE_MAX_BYTES];
	uint32_t base = job->job_state & JOB_STATE_BASE;
	/* The expected end of a running job and the expected start of a waiting one are no news. */
	int started = base > JOB_PENDING, ended = base > JOB_SUSPENDED;

	snprintf(line, sizeof(line),
		 "job\t%u\t%s\t%s\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\t%s\t%u\t%s\t%s",
		 JOB_ID(job), text(job->name), state_name(base), (int64_t)job->submit_time,
		 started ? (int64_t)job->start_time : 0, ended ? (int64_t)job->end_time : 0,
		 text(job->nodes), job->restart_cnt, text(job->admin_comment), text(job->extra));
	if (JOB_ID(job) >= JOBS_MAX || seen[JOB_ID(job)] == digest(line))
		return;
	seen[JOB_ID(job)] = digest(line);
	puts(line);
}

static void tell_queue(const job_info_msg_t *jobs)
{
	uint64_t at[10] = {0}, total = 0;
	uint32_t pending = 0, running = 0, ended = 0;
	FILE *stat = fopen("/proc/stat", "re");

	for (uint32_t i = 0; jobs && i < jobs->record_count; i++) {
		uint32_t base = jobs->job_array[i].job_state & JOB_STATE_BASE;

		pending += base == JOB_PENDING;
		running += base == JOB_RUNNING;
		ended += base > JOB_SUSPENDED;
	}
	if (stat) {
		if (fscanf(stat, "cpu %lu %lu %lu %lu %lu %lu %lu %lu", &at[0], &at[1], &at[2],
			   &at[3], &at[4], &at[5], &at[6], &at[7]) != 8)
			memset(at, 0, sizeof(at));
		fclose(stat);
	}
	for (int i = 0; i < 8; i++)
		total += at[i];
	printf("queue\t%.3f\t%u\t%u\t%u\t%" PRIu64 "\t%" PRIu64 "\n", (double)time(NULL), pending,
	       running, ended, total - at[3] - at[4], total);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	job_info_msg_t *jobs = NULL;
	double every = argc == 2 ? atof(argv[1]) : 0;

	if (every < 0.1) {
		fputs("usage: replay_watch SECONDS > log\n", stderr);
		return 2;
	}
	slurm_init(NULL);
	for (;; usleep((useconds_t)(every * 1e6))) {
		job_info_msg_t *fresh = NULL;

		if (!slurm_load_jobs(jobs ? jobs->last_update : 0, &fresh, SHOW_ALL)) {
			slurm_free_job_info_msg(jobs);
			jobs = fresh;
			for (uint32_t i = 0; i < jobs->record_count; i++)
				tell_job(&jobs->job_array[i]);
		} else if (errno != SLURM_NO_CHANGE_IN_DATA) {
			fprintf(stderr, "replay_watch: %s\n", slurm_strerror(errno));
			continue; /* slurmctld may be restarting */
		}
		tell_queue(jobs);
	}
}
