/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Of two forms that give a job the same, Slurm 24.11 to 26.05 choose GPUs better for one: asked by
 * node, they take the least linked GPUs first; asked by job, they keep those that are linked best
 * (gres_select_filter.c). Here the first becomes the second, where one node is all that the job
 * gets.
 */
#include "job_submit/job_submit.h"

#include <string.h>

static bool unset(const char *s)
{
	return !s || !*s;
}

static bool number_unset(uint16_t value)
{
	return !value || value == NO_VAL16 || value == INFINITE16;
}

/* GPUs of one type or none, and nothing else: "gres/gpu:2", "gres/gpu:h100:2". */
static bool only_gpus(const char *tres, uint64_t most)
{
	struct tres_found found = {0};
	struct text others;
	bool alone;

	if (unset(tres) || strchr(tres, ','))
		return false;
	tres_scan(tres, &found);
	text_init(&others, FOREIGN_TEXT_MAX);
	tres_keep_others(tres, &others);
	alone = !others.len && !others.failed;
	text_free(&others);
	return alone && found.gpus > 1 && found.gpus <= most && !found.hidden && !found.shared &&
	       !found.bad_count;
}

/* Each of these says something of GPUs by node, socket or task, or binds them. */
static bool says_more(const job_desc_msg_t *job)
{
	const uint64_t flags = GRES_ENFORCE_BIND | GRES_DISABLE_BIND | GRES_ONE_TASK_PER_SHARING |
			       GRES_MULT_TASKS_PER_SHARING;
	struct text slurms_own;
	bool more;

	text_init(&slurms_own, SEGMENT_BODY_MAX);
	request_slurms_own(job, &slurms_own);
	more = slurms_own.len || slurms_own.failed;
	text_free(&slurms_own);
	return more || (job->bitflags & flags) || !unset(job->tres_per_job) ||
	       !unset(job->tres_per_socket) || !unset(job->tres_per_task) ||
	       !unset(job->cpus_per_tres) || !unset(job->mem_per_tres) || !unset(job->tres_bind) ||
	       !unset(job->tres_freq) || !number_unset(job->ntasks_per_tres) ||
	       !number_unset(job->sockets_per_node);
}

void ask_for_linked_gpus(job_desc_msg_t *job, uint64_t node_gpus)
{
	/* srun and salloc repeat their request for each step, and components are settled together.
	 */
	if (!request_is_batch(job) || job->het_job_offset != NO_VAL || request_nodes(job) != 1 ||
	    !only_gpus(job->tres_per_node, node_gpus) || says_more(job))
		return;
	set_string(&job->tres_per_job, job->tres_per_node);
	set_string(&job->tres_per_node, NULL);
	/* Else Slurm might take one GPU of each of two nodes. */
	job->min_nodes = job->max_nodes = 1;
}

/* Its owner knows the job by the request that was turned into another one, and Slurm refuses both.
 */
void let_change_replace(job_desc_msg_t *change)
{
	struct tres_found found = {0};

	tres_scan(change->tres_per_node, &found);
	if (found.gpu && !change->tres_per_job)
		set_string(&change->tres_per_job, "");
}
