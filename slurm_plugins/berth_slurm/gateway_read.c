/* SPDX-License-Identifier: Apache-2.0 */
/* `read`: what changed in Slurm since the last one; `job`: one job's record. */
#include "berth_slurm/gateway.h"
#include "common/one_job.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct text line = {.limit = GATEWAY_LINE};
static struct seen jobs_seen, nodes_seen, partitions_seen, reservations_seen;
/* Where jobs run, to tell when nodes must have changed. */
static struct text place = {.limit = GATEWAY_LINE};
static struct seen places_seen;
static time_t jobs_at, nodes_at, reservations_at;
/* What changes by an admin's hand alone is asked for at most once a second. That goes for nodes
 * too, as long as no job starts or ends: slurmctld counts all GRES of all nodes anew, under its
 * lock, before it says that nothing changed. */
#define SELDOM_MS 1000
static uint64_t seldom_due_ms, nodes_due_ms;
/* A look at all nodes takes slurmctld 58 us for each, and one at all jobs 8 us. It is left alone
 * for this many times as long, so that neither takes more than a fiftieth of its time. Meanwhile
 * the other side works out from the jobs what nodes have in use. */
#define LEAVE_ALONE 50
#define LEAVE_ALONE_AT_MOST_MS 10000
#define NODE_US 58
#define JOB_US 8
static uint64_t nodes_soonest_ms;
static bool nodes_behind;
/* slurmctld packs each record of a look at all jobs under its lock: 8 us for each, and 0.13 us for
 * a state alone. So where there are many, most looks ask for the states, and then for the records
 * of those jobs whose state is another, that are new, or that this program has changed. What
 * others change without a state, such as a time limit, the next whole look sees. */
#define STATES_FROM 2000
#define WHOLE_EVERY_MS 5000
/* A record asked for by itself takes as long as this many in a look at all. */
#define SINGLE_COSTS 12
#define MOST_SINGLE 4096
/* Names may come more than once. */
#define MOST_NAMED (4 * MOST_SINGLE)
static struct seen states_seen;
static uint64_t whole_due_ms;
static uint32_t to_load[MOST_NAMED + 1], to_load_count;
/* Kept, because the names of a node's partitions come from here. */
static partition_info_msg_t *partitions;

static uint64_t moment(time_t at)
{
	return at > 0 ? (uint64_t)at : 0;
}

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static uint64_t later_of(uint64_t one, uint64_t other)
{
	return one > other ? one : other;
}

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);
	uint64_t value;

	return text && parse_number(text, UINT32_MAX, &value) ? value : otherwise;
}

static uint64_t leave_alone_ms(size_t records, uint64_t each_us)
{
	uint64_t rest = records * each_us * LEAVE_ALONE / 1000;

	return rest < LEAVE_ALONE_AT_MOST_MS ? rest : LEAVE_ALONE_AT_MOST_MS;
}

static bool unchanged(void)
{
	return errno == SLURM_NO_CHANGE_IN_DATA;
}

/* As squeue sees it when it is not asked for ended jobs. */
static bool is_over(uint32_t state)
{
	const uint32_t busy = JOB_CONFIGURING | JOB_COMPLETING | JOB_STOPPED | JOB_SIGNALING |
			      JOB_STAGE_OUT | JOB_RESIZING;

	return (state & JOB_STATE_BASE) > JOB_SUSPENDED && !(state & busy);
}

static void job_line(slurm_job_info_t *job)
{
	time_t end = job->end_time;

	/* As squeue: a job without a limit has no end before it ended. */
	if (job->time_limit == INFINITE && end > time(NULL))
		end = 0;
	json_begin(&line, "job");
	json_number(&line, JOB_ID(job));
	json_text(&line, slurm_job_state_string(job->job_state));
	json_number(&line, is_over(job->job_state));
	json_number(&line, job->user_id);
	json_text(&line, job->partition);
	json_number(&line, job->priority);
	json_number(&line, moment(job->submit_time));
	json_number(&line, moment(job->start_time));
	json_number(&line, moment(end));
	json_number(&line, moment(job->eligible_time));
	json_number32(&line, job->time_limit);
	json_number(&line, job->num_cpus);
	json_number(&line, job->num_nodes);
	json_text(&line, job->nodes);
	json_text(&line, job->req_nodes);
	json_text(&line, job->exc_nodes);
	json_text(&line, job->features);
	json_text(&line, job->state_desc ? job->state_desc
					 : slurm_job_state_reason_string(job->state_reason));
	json_text(&line, job->tres_per_job);
	json_text(&line, job->tres_per_node);
	json_text(&line, job->tres_per_socket);
	json_text(&line, job->tres_per_task);
	json_text(&line, job->tres_alloc_str ? job->tres_alloc_str : job->tres_req_str);
	json_texts(&line, job->gres_detail_str, job->gres_detail_cnt);
	json_number(&line, job->array_job_id);
	json_number32(&line, job->array_task_id);
	json_text(&line, job->array_task_str);
	json_number(&line, job->array_max_tasks);
	json_number(&line, job->het_job_id);
	json_text(&line, job->resv_name);
	json_text(&line, job->licenses);
	json_text(&line, job->admin_comment);
	json_text(&line, job->extra);
	json_text(&line, job->account);
	json_text(&line, job->name);
	json_text(&line, slurm_job_state_string(job->job_state & JOB_STATE_BASE));
	/* Of a pinned job it is no news, and would be a change at each backfill. */
	json_text(&line, job->req_nodes ? NULL : job->sched_nodes);
}

/* Whether it holds other nodes, or in another state, than when it was looked at last. */
static bool job_moved(slurm_job_info_t *job)
{
	if (!job->nodes || !*job->nodes)
		return false;
	json_begin(&place, "place");
	json_number(&place, job->job_state);
	json_text(&place, job->nodes);
	return seen_changed(&places_seen, JOB_ID(job), &place);
}

static void take_records(const job_info_msg_t *found, bool *moved)
{
	for (uint32_t i = 0; i < found->record_count; i++) {
		*moved |= job_moved(&found->job_array[i]);
		job_line(&found->job_array[i]);
		if (seen_changed(&jobs_seen, JOB_ID(&found->job_array[i]), &line))
			json_end(&line);
	}
}

static int read_all_jobs(bool *moved)
{
	job_info_msg_t *found = NULL;

	if (slurm_load_jobs(jobs_at, &found, SHOW_ALL | SHOW_DETAIL))
		return unchanged() ? 0 : errno;
	seen_begin(&jobs_seen);
	seen_begin(&places_seen);
	take_records(found, moved);
	seen_end(&jobs_seen, "job");
	*moved |= seen_end(&places_seen, NULL);
	jobs_at = found->last_update;
	slurm_free_job_info_msg(found);
	return 0;
}

static bool state_changed(const job_state_response_job_t *job)
{
	json_begin(&place, "state");
	json_number(&place, job->state);
	return seen_changed(&states_seen, job->job_id, &place);
}

static int by_number(const void *one, const void *other)
{
	uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other;

	return (a > b) - (a < b);
}

/* One more than there may be tells that there are too many. */
static void load_later(uint32_t job_id)
{
	if (to_load_count <= MOST_NAMED)
		to_load[to_load_count++] = job_id;
}

/* In order, and each once; not where there are too many. */
static void sort_to_load(void)
{
	uint32_t kept = 0;

	if (to_load_count > MOST_NAMED)
		return;
	qsort(to_load, to_load_count, sizeof(*to_load), by_number);
	for (uint32_t i = 0; i < to_load_count; i++) {
		if (!kept || to_load[kept - 1] != to_load[i])
			to_load[kept++] = to_load[i];
	}
	to_load_count = kept;
}

void gateway_changed(const char *name)
{
	uint64_t job_id = strtoul(name, NULL, 10);

	if (job_id > 0 && job_id < NO_VAL)
		load_later((uint32_t)job_id);
}

/* The states of all jobs, as they are from now on; into to_load, whose records are to be asked for.
 * Of an array the tasks that wait are one record, which changes as one of them gets its own. */
static void take_states(const job_state_response_msg_t *states)
{
	seen_begin(&states_seen);
	for (uint32_t i = 0; i < states->jobs_count; i++) {
		const job_state_response_job_t *job = &states->jobs[i];

		if (!state_changed(job))
			continue;
		load_later(job->job_id);
		if (job->array_job_id)
			load_later(job->array_job_id);
	}
	seen_end(&states_seen, NULL);
}

static int read_changed_jobs(const job_state_response_msg_t *states, bool *moved)
{
	seen_begin(&jobs_seen);
	seen_begin(&places_seen);
	for (uint32_t i = 0; i < states->jobs_count; i++) {
		uint32_t job_id = states->jobs[i].job_id;

		if (bsearch(&job_id, to_load, to_load_count, sizeof(*to_load), by_number))
			continue;
		seen_keep(&jobs_seen, job_id);
		seen_keep(&places_seen, job_id);
	}
	for (uint32_t i = 0; i < to_load_count; i++) {
		job_info_msg_t *found = NULL;

		/* It may have gone meanwhile. */
		if (load_job(to_load[i], &found, SHOW_ALL | SHOW_DETAIL)) {
			if (errno != ESLURM_INVALID_JOB_ID)
				return errno;
			continue;
		}
		take_records(found, moved);
		slurm_free_job_info_msg(found);
	}
	seen_end(&jobs_seen, "job");
	*moved |= seen_end(&places_seen, NULL);
	return 0;
}

static int read_jobs(bool *moved, uint64_t now)
{
	job_state_response_msg_t *states = NULL;
	bool few;
	int problem;

	if (jobs_at && jobs_seen.count < from_environment("BERTH_SLURM_STATES_FROM", STATES_FROM))
		return read_all_jobs(moved);
	/* Before a whole look: what changes in between is asked for once more. */
	if (slurm_load_job_state(0, NULL, &states))
		return errno;
	take_states(states);
	sort_to_load();
	few = to_load_count <= MOST_SINGLE && to_load_count * SINGLE_COSTS <= states->jobs_count;
	if (!jobs_at || now >= whole_due_ms || !few) {
		problem = read_all_jobs(moved);
		whole_due_ms =
		    now + later_of(WHOLE_EVERY_MS, leave_alone_ms(jobs_seen.count, JOB_US));
	} else {
		problem = read_changed_jobs(states, moved);
	}
	if (!problem)
		to_load_count = 0;
	slurm_free_job_state_response_msg(states);
	return problem;
}

static void allocated(node_info_t *node, uint64_t *cpus, uint64_t *memory)
{
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 5, 0)
	*cpus = node->alloc_cpus;
	*memory = node->alloc_memory;
#else
	uint16_t some_cpus = 0;

	*memory = 0;
	slurm_get_select_nodeinfo(node->select_nodeinfo, SELECT_NODEDATA_SUBCNT,
				  NODE_STATE_ALLOCATED, &some_cpus);
	slurm_get_select_nodeinfo(node->select_nodeinfo, SELECT_NODEDATA_MEM_ALLOC,
				  NODE_STATE_ALLOCATED, memory);
	*cpus = some_cpus;
#endif
}

/* As slurmctld counts: what MemSpecLimit keeps for the system is never handed out. */
static uint64_t memory_for_jobs(const node_info_t *node)
{
	return node->real_memory > node->mem_spec_limit ? node->real_memory - node->mem_spec_limit
							: 0;
}

static void node_line(uint32_t place, node_info_t *node)
{
	char *state = slurm_node_state_string_complete(node->node_state);
	uint64_t cpus, memory;

	allocated(node, &cpus, &memory);
	json_begin(&line, "node");
	json_number(&line, place);
	json_text(&line, node->name);
	json_number(&line, node->cpus_efctv);
	json_number(&line, cpus);
	json_number(&line, memory_for_jobs(node));
	json_number(&line, memory);
	json_number(&line, node->threads);
	json_text(&line, state);
	json_text(&line, node->gres);
	json_text(&line, node->gres_used);
	json_text(&line, node->features_act);
	json_text(&line, node->partitions);
	json_number(&line, node->weight);
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(24, 5, 0)
	json_number(&line, node->res_cores_per_gpu);
#endif
	slurm_xfree((void **)&state);
}

static int read_nodes(void)
{
	node_info_msg_t *found = NULL;

	if (slurm_load_node(nodes_at, &found, SHOW_ALL | SHOW_DETAIL))
		return unchanged() ? 0 : errno;
	slurm_populate_node_partitions(found, partitions);
	seen_begin(&nodes_seen);
	for (uint32_t i = 0; i < found->record_count; i++) {
		/* A place in the table may be empty. */
		if (!found->node_array[i].name || !*found->node_array[i].name)
			continue;
		node_line(i, &found->node_array[i]);
		if (seen_changed(&nodes_seen, i, &line))
			json_end(&line);
	}
	seen_end(&nodes_seen, "node");
	nodes_at = found->last_update;
	slurm_free_node_info_msg(found);
	return 0;
}

/* Always whole: a node that joins a partition or leaves it is no change of it to slurmctld. */
static int read_partitions(void)
{
	partition_info_msg_t *found = NULL;
	bool others = false;

	if (slurm_load_partitions(0, &found, SHOW_ALL))
		return errno;
	seen_begin(&partitions_seen);
	for (uint32_t i = 0; i < found->record_count; i++) {
		char *words = slurm_sprint_partition_info(&found->partition_array[i], 1);

		json_begin(&line, "partition");
		json_number(&line, i);
		json_text(&line, words);
		if (seen_changed(&partitions_seen, i, &line)) {
			json_end(&line);
			others = true;
		}
		slurm_xfree((void **)&words);
	}
	others |= seen_end(&partitions_seen, "partition");
	if (partitions)
		slurm_free_partition_info_msg(partitions);
	partitions = found;
	/* A node that went to another partition need not have changed otherwise. */
	if (others) {
		nodes_at = 0;
		nodes_due_ms = nodes_soonest_ms = 0;
	}
	return 0;
}

static int read_reservations(void)
{
	reserve_info_msg_t *found = NULL;
	uint64_t floats = 0;

	if (slurm_load_reservations(reservations_at, &found))
		return unchanged() ? 0 : errno;
	seen_begin(&reservations_seen);
	for (uint32_t i = 0; i < found->record_count; i++) {
		reserve_info_t *one = &found->reservation_array[i];
		char *words = slurm_sprint_reservation_info(one, 1);

		json_begin(&line, "reservation");
		json_number(&line, i);
		json_text(&line, one->name);
		json_number(&line, moment(one->start_time));
		json_number(&line, moment(one->end_time));
		json_text(&line, one->node_list);
		json_text(&line, words);
		slurm_xfree((void **)&words);
		/* A floating start is told anew at each look. */
		floats |= one->flags & RESERVE_FLAG_TIME_FLOAT;
		if (seen_changed(&reservations_seen, i, &line))
			json_end(&line);
	}
	seen_end(&reservations_seen, "reservation");
	reservations_at = floats ? 0 : found->last_update;
	slurm_free_reservation_info_msg(found);
	return 0;
}

void gateway_forget(void)
{
	seen_free(&jobs_seen);
	seen_free(&places_seen);
	seen_free(&states_seen);
	whole_due_ms = 0;
	to_load_count = 0;
	seen_free(&nodes_seen);
	seen_free(&partitions_seen);
	seen_free(&reservations_seen);
	jobs_at = nodes_at = reservations_at = 0;
	seldom_due_ms = nodes_due_ms = nodes_soonest_ms = 0;
	nodes_behind = false;
	if (partitions)
		slurm_free_partition_info_msg(partitions);
	partitions = NULL;
	text_free(&line);
	text_free(&place);
}

/* The other side is told first whether what it worked out is to be given up. */
static void tell_behind(bool behind)
{
	json_begin(&line, "nodes");
	json_number(&line, behind);
	json_end(&line);
	nodes_behind = behind;
}

static int read_nodes_if_due(bool moved, uint64_t now)
{
	uint64_t rest;
	int problem;

	if (now < (moved ? nodes_soonest_ms : nodes_due_ms)) {
		if (moved)
			tell_behind(true);
		return 0;
	}
	if (nodes_behind)
		tell_behind(false);
	problem = read_nodes();
	rest =
	    from_environment("BERTH_SLURM_NODES_REST", leave_alone_ms(nodes_seen.count, NODE_US));
	nodes_soonest_ms = now + rest;
	nodes_due_ms = now + later_of(rest, SELDOM_MS);
	return problem;
}

int gateway_read(bool afresh)
{
	bool moved = false;
	int problem = 0;
	uint64_t now;

	if (afresh)
		gateway_forget();
	now = now_ms();
	if (now >= seldom_due_ms) {
		problem = read_partitions();
		if (!problem)
			problem = read_reservations();
		seldom_due_ms = now + SELDOM_MS;
	}
	if (!problem)
		problem = read_jobs(&moved, now);
	if (!problem)
		problem = read_nodes_if_due(moved, now);
	return problem;
}

int gateway_job(uint32_t job_id)
{
	job_info_msg_t *found = NULL;

	if (load_job(job_id, &found, SHOW_ALL | SHOW_DETAIL))
		return errno;
	/* Of an array all tasks come. */
	for (uint32_t i = 0; i < found->record_count; i++) {
		if (JOB_ID(&found->job_array[i]) != job_id)
			continue;
		job_line(&found->job_array[i]);
		json_end(&line);
	}
	slurm_free_job_info_msg(found);
	return 0;
}
