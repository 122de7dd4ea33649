/* SPDX-License-Identifier: Apache-2.0 */
/* `update`, `requeue`, `evict`, `cancel`, `signal`: what Berth writes. `config`, `ping`: what
 * seldom changes.
 */
#include "berth_slurm/gateway.h"

#include <errno.h>
#include <signal.h>
#include <slurm/slurmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The fields of a job that may be changed, by the names that they have in Slurm. */
static char **field_of(job_desc_msg_t *job, const char *name)
{
	struct {
		const char *name;
		char **field;
	} fields[] = {
	    {"req_nodes", &job->req_nodes},	    {"exc_nodes", &job->exc_nodes},
	    {"tres_per_node", &job->tres_per_node}, {"tres_per_job", &job->tres_per_job},
	    {"admin_comment", &job->admin_comment}, {"extra", &job->extra},
	    {"licenses", &job->licenses},	    {"tres_per_task", &job->tres_per_task},
	};

	for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
		if (!strcmp(fields[i].name, name))
			return fields[i].field;
	}
	return NULL;
}

/* A begin time: seconds since 1970, or with a + from now on; 0 is now. */
static bool put_begin(job_desc_msg_t *job, const char *value)
{
	bool from_now = *value == '+';
	uint64_t seconds;

	if (!parse_number(value + from_now, UINT32_MAX, &seconds))
		return false;
	job->begin_time = (time_t)seconds + (from_now || !seconds ? time(NULL) : 0);
	return true;
}

/* A number that the job has at least, and where `most` is given also at most. */
static bool put_count(uint32_t *least, uint32_t *most, const char *value)
{
	uint64_t count;

	if (!parse_number(value, NO_VAL - 1, &count) || !count)
		return false;
	*least = (uint32_t)count;
	if (most)
		*most = (uint32_t)count;
	return true;
}

static bool put_change(job_desc_msg_t *job, const char *name, char *value)
{
	char **field = field_of(job, name), *most;

	if (field)
		*field = value;
	else if (!strcmp(name, "requeue") && (!strcmp(value, "0") || !strcmp(value, "1")))
		job->requeue = *value == '1';
	else if (!strcmp(name, "node_count") && !strcmp(value, "any")) {
		/* Slurm takes 0 for no bound. */
		job->min_nodes = 1;
		job->max_nodes = 0;
	} else if (!strcmp(name, "node_count") && (most = strchr(value, '-'))) {
		*most = '\0';
		return put_count(&job->min_nodes, NULL, value) &&
		       put_count(&job->max_nodes, NULL, most + 1);
	} else if (!strcmp(name, "node_count"))
		return put_count(&job->min_nodes, &job->max_nodes, value);
	else if (!strcmp(name, "min_cpus"))
		return put_count(&job->min_cpus, NULL, value);
	else
		return !strcmp(name, "begin") && put_begin(job, value);
	return true;
}

static bool put_changes(job_desc_msg_t *job, char *changes, struct text *said)
{
	char *rest = changes, *word;

	while ((word = strsep(&rest, " "))) {
		char *value = strchr(word, '=');

		if (value)
			*value++ = '\0';
		if (!value || !unescape(value) || !put_change(job, word, value)) {
			text_addf(said, "a change that berth-slurm does not know: %.64s", word);
			return false;
		}
	}
	return true;
}

/* With a task's name Slurm answers for each task, and says more. */
static int problem_in(job_array_resp_msg_t *answer, struct text *said)
{
	int problem = 0;

	if (!answer)
		return 0;
	for (uint32_t i = 0; i < answer->job_array_count && !problem; i++) {
		problem = (int)answer->error_code[i];
		if (problem && answer->err_msg && answer->err_msg[i])
			text_add(said, answer->err_msg[i]);
	}
	slurm_free_job_array_resp(answer);
	return problem;
}

int gateway_update(char *name, char *changes, struct text *said)
{
	job_array_resp_msg_t *answer = NULL;
	job_desc_msg_t job;
	uint64_t job_id;

	slurm_init_job_desc_msg(&job);
	/* By number an array's record is itself; by name it would be all its tasks. */
	if (!parse_number(name, NO_VAL - 1, &job_id))
		job.job_id_str = name;
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
	else
		job.step_id.job_id = (uint32_t)job_id;
#else
	else
		job.job_id = (uint32_t)job_id;
#endif
	gateway_changed(name);
	if (!put_changes(&job, changes, said))
		return EINVAL;
	if (slurm_update_job2(&job, &answer))
		return errno ? errno : SLURM_ERROR;
	return problem_in(answer, said);
}

int gateway_requeue(char *job, bool only_running, struct text *said)
{
	job_array_resp_msg_t *answer = NULL;

	gateway_changed(job);
	/* With the flag slurmctld passes over a job that has just ended, and says nothing. */
	if (slurm_requeue2(job, only_running ? JOB_RUNNING : 0, &answer))
		return errno ? errno : SLURM_ERROR;
	return problem_in(answer, said);
}

/* To the job's steps, as scancel does: the batch shell ends on many signals before its steps. With
 * `batch` to the shell alone, as `scancel --batch`.
 */
int gateway_signal(const char *job, char *number)
{
	char *to = strchr(number, ' ');
	uint64_t signal;

	if (to)
		*to++ = '\0';
	if (to && strcmp(to, "batch"))
		return EINVAL;
	if (!parse_number(number, 64, &signal) || !signal)
		return EINVAL;
	return slurm_kill_job2(job, (uint16_t)signal, to ? KILL_JOB_BATCH : KILL_STEPS_ONLY, NULL)
		   ? (errno ? errno : SLURM_ERROR)
		   : 0;
}

/* As scancel does without a signal: SIGTERM first, and SIGKILL after KillWait. */
int gateway_cancel(const char *job)
{
	return slurm_kill_job2(job, SIGKILL, 0, NULL) ? (errno ? errno : SLURM_ERROR) : 0;
}

/* As `scontrol show config` prints it, because the words in it are the same in all releases. */
int gateway_config(void)
{
	struct text line = {.limit = GATEWAY_LINE};
	slurm_conf_t *found = NULL;
	char *words = NULL;
	size_t size = 0;
	FILE *out;

	if (slurm_load_ctl_conf(0, &found))
		return errno;
	out = open_memstream(&words, &size);
	if (!out)
		abort();
	slurm_print_ctl_conf(out, found);
	fclose(out);
	json_begin(&line, "config");
	json_text(&line, words);
	json_end(&line);
	text_free(&line);
	free(words);
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
	slurm_free_conf(found);
#else
	slurm_free_ctl_conf(found);
#endif
	return 0;
}

/* The first controller that answers, which is the one in control, and the federation's name. */
int gateway_ping(void)
{
	controller_ping_t *pings = ping_all_controllers();
	slurmdb_federation_rec_t *federation = NULL;
	struct text line = {.limit = GATEWAY_LINE};
	const char *first = "";

	for (const controller_ping_t *ping = pings; ping && ping->hostname; ping++) {
		if (ping->pinged) {
			first = ping->hostname;
			break;
		}
	}
	if (slurm_load_federation((void **)&federation)) {
		slurm_xfree((void **)&pings);
		return errno;
	}
	json_begin(&line, "ping");
	json_text(&line, first);
	json_text(&line, federation ? federation->name : NULL);
	json_end(&line);
	text_free(&line);
	if (federation)
		slurm_destroy_federation_rec(federation);
	slurm_xfree((void **)&pings);
	return 0;
}
