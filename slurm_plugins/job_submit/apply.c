/* SPDX-License-Identifier: Apache-2.0 */
/* From a checked reply to Slurm's job description. */
#include "job_submit/job_submit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "config/counted.h"
#include "config/options.h"
#include "pin/pin_text.h"
#include "pin/segment.h"

void apply_default_cpus(job_desc_msg_t *job, uint32_t per_gpu, uint32_t share)
{
	char per_tres[32];
	uint32_t cpus = share ? (per_gpu * share + 99) / 100 : per_gpu;
	bool cpus_named = job->cpus_per_tres || job->cpus_per_task != NO_VAL16 ||
			  (job->pn_min_cpus != NO_VAL16 && job->pn_min_cpus > 1);

	if (!per_gpu || cpus_named)
		return;
	snprintf(per_tres, sizeof(per_tres), "gres/gpu:%" PRIu32, cpus);
	set_string(&job->cpus_per_tres, per_tres);
}

/*
 * srun copies the job's tres_per_node into its own step's request, beside what --gpus and its like
 * still say there, and Slurm refuses the mixture of typed and untyped GPUs. So a job without a
 * script is pinned by tres_per_job: as many GPUs of each type as nodes, and no node has two of a
 * type. Only beside another GRES (a NIC, say) tres_per_node stays whole, or the step would lose its
 * GPUs. A share is no GPU in Slurm's eyes, so there nothing mixes. Of salloc each step is an srun
 * of its own, which copies nothing; one that asks for no GPUs has what slurmctld copies from the
 * job: of tres_per_job all of it, which a step on fewer nodes cannot have.
 */
static char **pinned_field(job_desc_msg_t *job, const struct reply *reply)
{
	struct text others;
	bool alone;

	if (request_is_batch(job) || request_is_salloc(job) || reply->share)
		return &job->tres_per_node;
	text_init(&others, FOREIGN_TEXT_MAX);
	tres_keep_others(job->tres_per_node, &others);
	alone = others.len == 0 && !others.failed;
	text_free(&others);
	return alone ? &job->tres_per_job : &job->tres_per_node;
}

/* What was asked beside GPUs (a NIC, say) stays where it was asked. */
static void keep_others(char **field)
{
	struct text others;

	text_init(&others, FOREIGN_TEXT_MAX);
	tres_keep_others(*field, &others);
	set_string(field, others.len ? text_str(&others) : NULL);
	text_free(&others);
}

static bool environment_has(const job_desc_msg_t *job, const char *name_and_equals)
{
	for (uint32_t i = 0; job->environment && i < job->env_size; i++)
		if (job->environment[i] &&
		    !strncmp(job->environment[i], name_and_equals, strlen(name_and_equals)))
			return true;
	return false;
}

bool add_word(char ***list, uint32_t *count, const char *word)
{
	if (!slurm_xrecalloc((void **)list, *count + 2, sizeof(char *), true, true, __FILE__,
			     __LINE__, __func__))
		return false;
	(*list)[(*count)++] = slurm_xstrdup(word);
	return true;
}

void apply_seat_asked(job_desc_msg_t *job)
{
	if (request_is_batch(job) && !environment_has(job, SEAT_ASKED "="))
		add_word(&job->environment, &job->env_size, SEAT_ASKED "=1");
}

/*
 * sbatch tells its steps --gpus-per-task by SLURM_TRES_PER_TASK, and slurmctld writes that variable
 * anew if the job has tres_per_task, of which a pin leaves CPUs at most.
 */
static bool steps_read_gpus_per_task(const job_desc_msg_t *job)
{
	struct tres_found found = {0};

	tres_scan(job->tres_per_task, &found);
	return found.gpus && environment_has(job, "SLURM_TRES_PER_TASK=");
}

/*
 * From 26.05 on an srun that makes its own allocation gives its step what the job has for each
 * task: were it CPUs alone, the step would forget --gpus-per-task. CPUs have a field of their own.
 */
static void say_cpus_of_tasks(job_desc_msg_t *job)
{
	const char *cpus = job->tres_per_task;
	uint64_t number;

	if (!cpus || strncmp(cpus, "cpu", 3) || !strchr(":=", cpus[3]) ||
	    !parse_number(cpus + 4, NO_VAL16 - 1, &number) || !number)
		return;
	if (job->cpus_per_task == NO_VAL16)
		job->cpus_per_task = (uint16_t)number;
	if (job->cpus_per_task == number)
		set_string(&job->tres_per_task, NULL);
}

/* How many tasks the job will have: as Slurm counts where the user does not say. */
static uint64_t task_count(const job_desc_msg_t *job, size_t nodes)
{
	if (job->num_tasks != NO_VAL && job->num_tasks > 0)
		return job->num_tasks;
	if (job->ntasks_per_node != NO_VAL16 && job->ntasks_per_node > 0)
		return nodes * job->ntasks_per_node;
	return nodes;
}

static bool tasks_given(const job_desc_msg_t *job)
{
	bool in_all = job->num_tasks != NO_VAL && job->num_tasks > 0;

	return in_all || (job->ntasks_per_node != NO_VAL16 && job->ntasks_per_node > 0);
}

/*
 * Slurm lays tasks on nodes as it likes, the first node full, and GPUs and CPUs follow the tasks
 * where they hang on each other. A pin has the same GPUs on each node, so there the tasks must be
 * the same too.
 */
static bool tasks_follow_gpus(const job_desc_msg_t *job)
{
	struct tres_found on_each = {0}, in_all = {0};

	tres_scan(job->tres_per_node, &on_each);
	tres_scan(job->tres_per_job, &in_all);
	return !on_each.gpus || in_all.gpus || job->cpus_per_tres ||
	       job->ntasks_per_tres != NO_VAL16;
}

static void lay_tasks_evenly(job_desc_msg_t *job, const struct reply *reply)
{
	uint64_t nodes = reply->node_count;
	uint64_t on_each = (task_count(job, nodes) + nodes - 1) / nodes;

	/* Of tasks that are not the same everywhere Slurm 26.05 counts as many on each node as on
	 * the fullest. */
	if (nodes < 2 || job->num_tasks == NO_VAL || job->num_tasks == 0 || job->num_tasks % nodes)
		return;
	if ((job->ntasks_per_node == NO_VAL16 || job->ntasks_per_node == 0) && on_each < NO_VAL16)
		job->ntasks_per_node = (uint16_t)on_each;
}

/*
 * cpus_per_tres must go, since Slurm cannot count it over several GRES types: say it in CPUs. Where
 * the number of tasks is given Slurm refuses more CPUs than the tasks take, whatever min_cpus says,
 * and splits min_cpus unevenly over nodes; so there it is said in CPUs of a task, rounded up.
 */
static void set_cpus(job_desc_msg_t *job, const struct reply *reply)
{
	uint64_t tasks = task_count(job, reply->node_count);
	uint64_t wanted =
	    (uint64_t)tres_per_gpu(job->cpus_per_tres) * reply->node_count * reply->gpu_count;
	uint64_t per_task;

	if (!job->cpus_per_tres)
		return;
	if (wanted < reply->min_cpus)
		wanted = reply->min_cpus;
	per_task = (wanted + tasks - 1) / tasks;
	if ((tasks > 1 || tasks_given(job)) && per_task > 1 && per_task < NO_VAL16 &&
	    job->cpus_per_task == NO_VAL16) {
		job->cpus_per_task = (uint16_t)per_task;
		wanted = per_task * tasks;
	}
	if (wanted && wanted <= MIN_CPUS_MAX && (job->min_cpus == NO_VAL || wanted > job->min_cpus))
		job->min_cpus = (uint32_t)wanted;
}

/* Memory for each GPU is counted by GPUs, of which a job with a share has none. */
static void set_memory(job_desc_msg_t *job, const struct reply *reply)
{
	uint64_t per_node = (uint64_t)tres_per_gpu(job->mem_per_tres) * reply->gpu_count;

	if (reply->mem_per_node)
		job->pn_min_memory = reply->mem_per_node;
	else if ((reply->share || reply->guest) && per_node)
		job->pn_min_memory = per_node;
	/* Of a job that waits for a share berthd says it in advance, and takes the GPUs away later.
	 */
	if (reply->share || reply->guest || reply->mem_per_node)
		set_string(&job->mem_per_tres, NULL);
}

/* A guest leaves when its owner comes, and until it has a seat nothing but its begin time holds it.
 */
static void set_guest(job_desc_msg_t *job, const struct reply *reply)
{
	if (!reply->guest)
		return;
	job->requeue = 1;
	if ((time_t)reply->begin > job->begin_time)
		job->begin_time = (time_t)reply->begin;
}

/* One form of request in place of all that the user may have written. */
static void set_request(job_desc_msg_t *job, const struct reply *reply, char **field,
			const char *tres)
{
	bool by_field = !request_is_batch(job) || steps_read_gpus_per_task(job);

	if (tasks_follow_gpus(job))
		lay_tasks_evenly(job, reply);
	set_cpus(job, reply);
	keep_others(&job->tres_per_job);
	keep_others(&job->tres_per_node);
	keep_others(&job->tres_per_socket);
	keep_others(&job->tres_per_task);
	if (by_field)
		say_cpus_of_tasks(job);
	set_string(field, tres);
	if (job->tres_bind && strstr(job->tres_bind, "gres/gpu:per_task"))
		set_string(&job->tres_bind, NULL);
	set_string(&job->cpus_per_tres, NULL);
	job->ntasks_per_tres = NO_VAL16;
	job->min_nodes = job->max_nodes = (uint32_t)reply->node_count;
	if (reply->pn_min_cpus &&
	    (job->pn_min_cpus == NO_VAL16 || job->pn_min_cpus < reply->pn_min_cpus))
		job->pn_min_cpus = reply->pn_min_cpus;
	set_memory(job, reply);
	set_guest(job, reply);
}

/* Slurm counts GPUs by model as licences; a request for one licence or another stays as it is. */
void apply_licenses(job_desc_msg_t *job, const char *ours)
{
	struct text joined;

	text_init(&joined, SLURM_TEXT_MAX);
	if (counted_join(job->licenses, ours, &joined))
		set_string(&job->licenses, joined.len ? text_str(&joined) : NULL);
	text_free(&joined);
}

/* All texts are made before the first field is changed: a job is changed in whole or not at all. */
bool apply_gpus(job_desc_msg_t *job, const struct reply *reply)
{
	bool pin = reply->verb == REPLY_PLACE;
	/* Without types there is no mixture to refuse, and this form alone is the same on each
	 * node. */
	char **field = pin ? pinned_field(job, reply) : &job->tres_per_node;
	struct text tres, extra, comment;
	bool ok;

	text_init(&comment, FOREIGN_TEXT_MAX + SEGMENT_BODY_MAX);
	segment_set(&comment, job->admin_comment, reply->segment);
	text_init(&extra, SLURM_TEXT_MAX);
	ok = pin_tres(reply, *field, field == &job->tres_per_job ? reply->node_count : 1, &tres) &&
	     !comment.failed && (!pin || pin_extra(reply, job->extra, &extra));
	if (ok) {
		set_request(job, reply, field, text_str(&tres));
		if (pin) {
			set_string(&job->req_nodes, reply->nodes);
			if (reply->exc_nodes)
				set_string(&job->exc_nodes, reply->exc_nodes);
			set_string(&job->extra, text_str(&extra));
			if (reply->licenses)
				apply_licenses(job, reply->licenses);
		}
		set_string(&job->admin_comment, text_str(&comment));
	}
	text_free(&tres);
	text_free(&extra);
	text_free(&comment);
	return ok;
}

bool apply_nodes(job_desc_msg_t *job, const struct reply *reply)
{
	if (reply->segment && !apply_segment(job, reply->segment))
		return false;
	if (reply->nodes)
		set_string(&job->req_nodes, reply->nodes);
	if (reply->licenses)
		apply_licenses(job, reply->licenses);
	if (reply->segment_size)
		job->segment_size = (uint16_t)reply->segment_size;
	return true;
}

bool apply_segment(job_desc_msg_t *job, const char *body)
{
	struct text comment;
	bool ok;

	text_init(&comment, FOREIGN_TEXT_MAX + SEGMENT_BODY_MAX);
	segment_set(&comment, job->admin_comment, body);
	ok = !comment.failed;
	if (ok)
		set_string(&job->admin_comment, text_str(&comment));
	text_free(&comment);
	return ok;
}
