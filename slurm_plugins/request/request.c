/* SPDX-License-Identifier: Apache-2.0 */
/* From Slurm's job description to the wire. Nothing here changes the job. */
#include "request/request.h"

#include <inttypes.h>
#include <string.h>

#include "config/options.h"

#define YEAR (365 * 24 * 60)

static bool given(const char *s)
{
	return s && *s;
}

/* sbatch has put the pre-flight before all that the user's own job depends on. */
static bool depends_first_on(const job_desc_msg_t *job, const char *id)
{
	const char *first = job->dependency ? job->dependency : "";

	return !strncmp(first, "afterany:", 9) && strcspn(first + 9, ",") == strlen(id) &&
	       !strncmp(first + 9, id, strlen(id));
}

const char *request_preflight(const job_desc_msg_t *job)
{
	static const char first[] = PREFLIGHT_JOB "=", is_one[] = PREFLIGHT_SECONDS "=";
	uint64_t id;

	for (uint32_t i = 0; job->spank_job_env && i < job->spank_job_env_size; i++) {
		const char *entry = job->spank_job_env[i];

		if (!entry)
			continue;
		if (!strncmp(entry, is_one, strlen(is_one)))
			return "run";
		if (!strncmp(entry, first, strlen(first)) &&
		    parse_number(entry + strlen(first), UINT32_MAX, &id) && id > 0 &&
		    depends_first_on(job, entry + strlen(first)))
			return entry + strlen(first);
	}
	return NULL;
}

void request_scan(const job_desc_msg_t *job, struct tres_found *found)
{
	struct tres_found about = {0};

	*found = (struct tres_found){0};
	tres_scan(job->tres_per_job, found);
	tres_scan(job->tres_per_node, found);
	tres_scan(job->tres_per_socket, found);
	tres_scan(job->tres_per_task, found);
	/* These ask for no GPU, but Slurm makes a GRES of the job of each that they name. */
	tres_scan(job->cpus_per_tres, &about);
	tres_scan(job->mem_per_tres, &about);
	found->hidden |= about.hidden;
	found->position_type |= about.position_type;
	found->shared |= about.shared;
	found->seat |= about.seat;
}

bool request_is_batch(const job_desc_msg_t *job)
{
	/* Of a heterogeneous job only the first component has the script; all have an environment.
	 */
	bool other_component = job->het_job_offset != NO_VAL && job->het_job_offset > 0;

	return given(job->script) || job->script_buf || (other_component && job->env_size > 0);
}

bool request_is_salloc(const job_desc_msg_t *job)
{
	static const char name[] = "salloc";
	const char *line = job->submit_line ? job->submit_line : "";
	size_t word = strcspn(line, " "), own = sizeof(name) - 1;

	return word >= own && !strncmp(line + word - own, name, own) &&
	       (word == own || line[word - own - 1] == '/');
}

static uint64_t gpus_in(const char *tres)
{
	struct tres_found found = {0};

	tres_scan(tres, &found);
	return found.gpus;
}

static bool ntasks_per_gpu_given(const job_desc_msg_t *job)
{
	return job->ntasks_per_tres != NO_VAL16 && job->ntasks_per_tres != INFINITE16 &&
	       job->ntasks_per_tres != 0;
}

bool request_wants_gpus(const job_desc_msg_t *job, const struct tres_found *found)
{
	return found->gpu || ntasks_per_gpu_given(job);
}

bool request_one_gpu(job_desc_msg_t *job)
{
	bool several_nodes = job->min_nodes != NO_VAL && job->min_nodes > 1;
	char **field = several_nodes ? &job->tres_per_node : &job->tres_per_job;
	struct text tres;
	bool ok;

	text_init(&tres, SLURM_TEXT_MAX);
	text_add(&tres, "gres/gpu:1");
	tres_keep_others(*field, &tres);
	ok = !tres.failed;
	if (ok)
		set_string(field, text_str(&tres));
	text_free(&tres);
	return ok;
}

/* "-N 1,4" allows no number of nodes between. */
static bool sizes_listed(const job_desc_msg_t *job)
{
	return given(job->job_size_str) && strpbrk(job->job_size_str, ",-:");
}

uint32_t request_nodes(const job_desc_msg_t *job)
{
	bool min_given = job->min_nodes != NO_VAL && job->min_nodes != 0;
	bool max_given = job->max_nodes != NO_VAL && job->max_nodes != 0;
	bool one_task = job->num_tasks == NO_VAL || job->num_tasks <= 1;

	if (sizes_listed(job))
		return 0;
	if (max_given)
		return min_given && job->min_nodes == job->max_nodes ? job->min_nodes : 0;
	/* -N1 without a maximum, or no -N at all: one task needs one node. */
	if (!min_given || job->min_nodes == 1)
		return one_task ? 1 : 0;
	return 0;
}

void request_count_gpus(const job_desc_msg_t *job, struct reply_expected *expected)
{
	uint64_t per_node = gpus_in(job->tres_per_node);
	uint64_t per_task = gpus_in(job->tres_per_task);
	uint32_t nodes = request_nodes(job);
	bool tasks_given = job->num_tasks != NO_VAL && job->num_tasks != 0;

	expected->gpus = gpus_in(job->tres_per_job);
	expected->gpus_per_node = 0;
	if (expected->gpus)
		return;
	if (per_node) {
		expected->gpus = per_node * nodes;
		expected->gpus_per_node = per_node;
	} else if (gpus_in(job->tres_per_socket)) {
		/* Only the sockets in use count, and only Slurm knows which those are. */
	} else if (per_task) {
		if (tasks_given)
			expected->gpus = per_task * job->num_tasks;
		else if (nodes == 1)
			expected->gpus = per_task;
	} else if (ntasks_per_gpu_given(job) && tasks_given &&
		   job->num_tasks % job->ntasks_per_tres == 0) {
		expected->gpus = job->num_tasks / job->ntasks_per_tres;
	}
}

static void add_string(struct text *out, const char *key, const char *value)
{
	if (!given(value))
		return;
	text_addf(out, "%s=", key);
	text_add_escaped(out, value);
	text_add(out, "\n");
}

/* The user's own, and those that a component before this one got. */
static void add_excluded(struct text *out, const job_desc_msg_t *job)
{
	const char *components = components_nodes(job);

	if (!*components || !given(job->exc_nodes)) {
		add_string(out, "exc_nodes", *components ? components : job->exc_nodes);
		return;
	}
	text_add(out, "exc_nodes=");
	text_add_escaped(out, job->exc_nodes);
	text_add(out, ",");
	text_add_escaped(out, components);
	text_add(out, "\n");
}

static void add_number(struct text *out, const char *key, uint64_t value, uint64_t none)
{
	/* 0 says "not given" as well as NO_VAL does, for each field that is sent by this. */
	if (value == none || value == 0)
		return;
	text_addf(out, "%s=%" PRIu64 "\n", key, value);
}

static void add_mark(struct text *out, const char *key, bool is)
{
	if (is)
		text_addf(out, "%s=1\n", key);
}

/*
 * Slurm does not tell a plugin that only a start time is asked for. The client's command line does,
 * unless the option stands inside the script. A wrong guess costs little: the place is not kept for
 * the moments until Slurm shows the job.
 */
bool request_is_test(const job_desc_msg_t *job)
{
	static const char option[] = "--test-only";
	const char *s = job->submit_line;

	while (s && (s = strstr(s, option))) {
		char after = s[strlen(option)];

		if (s > job->submit_line && s[-1] == ' ' && (after == ' ' || after == '\0'))
			return true;
		s += strlen(option);
	}
	return false;
}

/* --mem=0, and --mem-per-cpu=0 too. */
static bool all_memory(const job_desc_msg_t *job)
{
	return job->pn_min_memory == 0 || job->pn_min_memory == MEM_PER_CPU;
}

static void add_memory(struct text *out, const job_desc_msg_t *job)
{
	if (all_memory(job))
		text_add(out, "mem_per_node=0\n");
	else if (job->pn_min_memory != NO_VAL64 && (job->pn_min_memory & MEM_PER_CPU))
		add_number(out, "mem_per_cpu", job->pn_min_memory & ~MEM_PER_CPU, NO_VAL64);
	else
		add_number(out, "mem_per_node", job->pn_min_memory, NO_VAL64);
}

/* What a movable job has asked to be sent before its end: it saves its work on that. */
static void add_signal(struct text *out, const job_desc_msg_t *job, const struct flag_values *flags)
{
	if (flags_value(flags, "movable") && job->warn_signal && job->warn_signal != NO_VAL16)
		text_addf(out, "signal=%s%u\n", job->warn_flags & KILL_JOB_BATCH ? "B:" : "",
			  (unsigned)job->warn_signal);
}

static void add_flags(struct text *out, const struct flag_values *flags)
{
	for (size_t i = 0; i < berth_option_count; i++) {
		if (!flags->value[i])
			continue;
		text_addf(out, "flag.%s=", berth_options[i].name);
		text_add_escaped(out, flags->value[i]);
		text_add(out, "\n");
	}
}

static bool number_given(uint16_t value)
{
	return value && value != NO_VAL16 && value != INFINITE16;
}

void request_slurms_own(const job_desc_msg_t *job, struct text *out)
{
	/* `shared` is 0 for whole nodes, and 1 for nodes that anybody may share. */
	const char *apart = job->shared == NO_VAL16 || job->shared < 2 ? NULL : "--exclusive=user";
	/* A step that says --gres itself binds its tasks to GPUs by a count, and not those of a
	 * pin. */
	bool bound = !request_is_batch(job) && given(job->tres_bind) && gpus_in(job->tres_per_node);
	bool overcommits = job->overcommit != NO_VAL8 && job->overcommit;
	bool in_range =
	    job->max_nodes != NO_VAL && job->max_nodes > 1 && job->max_nodes != job->min_nodes;
	const struct {
		const char *name;
		bool given;
	} options[] = {
	    /* Slurm lets nobody change such a job, and requeues it to its place. */
	    {"scrontab", (job->bitflags & CRON_JOB) != 0},
	    /* Nor its nodes, of which the order tells where each task runs. */
	    {"-m arbitrary",
	     (job->task_dist & SLURM_DIST_STATE_BASE) == (uint32_t)SLURM_DIST_ARBITRARY},
	    /* Its backfill cuts the time limit down to what is free. */
	    {"--time-min", job->time_min && job->time_min != NO_VAL},
	    {"--gpu-bind", bound},
	    {"--overcommit", overcommits},
	    {"--contiguous", number_given(job->contiguous)},
	    {"--spread-job", (job->bitflags & SPREAD_JOB) != 0},
	    {"--use-min-nodes", in_range && (job->bitflags & USE_MIN_NODES)},
	    {"-N LIST", sizes_listed(job)},
	    {"--tmp", job->pn_min_tmp_disk && job->pn_min_tmp_disk != NO_VAL},
	    {"--core-spec", job->core_spec != NO_VAL16},
	    {"--segment", number_given(job->segment_size)},
	    {"--cores-per-socket", number_given(job->cores_per_socket)},
	    {"--ntasks-per-socket", number_given(job->ntasks_per_socket)},
	    {apart, apart != NULL},
	};

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		if (!options[i].given)
			continue;
		if (out->len)
			text_add(out, ",");
		text_add(out, options[i].name);
	}
}

static void add_slurms_own(struct text *out, const job_desc_msg_t *job)
{
	struct text options;

	text_init(&options, SEGMENT_BODY_MAX);
	request_slurms_own(job, &options);
	out->failed = out->failed || options.failed;
	add_string(out, "slurms_own", options.len ? text_str(&options) : NULL);
	text_free(&options);
}

static void add_admitted(struct text *out, const job_desc_msg_t *job, uint32_t uid)
{
	struct text partitions;

	text_init(&partitions, FOREIGN_TEXT_MAX);
	/* None of them is an answer too. */
	if (admitted_partitions(job, uid, &partitions)) {
		text_add(out, "admitted=");
		text_add_escaped(out, text_str(&partitions));
		text_add(out, "\n");
	}
	text_free(&partitions);
}

static void add_switches(struct text *out, const job_desc_msg_t *job)
{
	if (!job->req_switch || job->req_switch == NO_VAL)
		return;
	add_number(out, "switches", job->req_switch, NO_VAL);
	if (job->wait4switch != NO_VAL && job->wait4switch != INFINITE)
		text_addf(out, "switch_wait=%" PRIu32 "\n", job->wait4switch);
}

void request_write(const job_desc_msg_t *job, uint32_t submit_uid, const char *nonce,
		   const struct flag_values *flags, const struct reply_expected *expected,
		   struct text *out)
{
	uint32_t uid = job->user_id == NO_VAL ? submit_uid : job->user_id;

	text_addf(out, "berth/1 submit\nnonce=%s\nuid=%" PRIu32 "\n", nonce, uid);
	add_mark(out, "test", request_is_test(job));
	add_string(out, "partition", job->partition);
	add_admitted(out, job, uid);
	add_string(out, "account", job->account);
	if (given(job->extra))
		text_addf(out, "extra_bytes=%zu\n", strnlen(job->extra, FOREIGN_TEXT_MAX));
	add_string(out, "name", job->name);
	add_string(out, "qos", job->qos);
	add_string(out, "reservation", job->reservation);
	add_string(out, "licenses", job->licenses);
	add_string(out, "features", job->features);
	add_string(out, "prefer", job->prefer);
	add_string(out, "req_nodes", job->req_nodes);
	add_excluded(out, job);
	add_string(out, "array", job->array_inx);
	if (job->het_job_offset != NO_VAL)
		text_addf(out, "het=%" PRIu32 "\n", job->het_job_offset);
	add_mark(out, "held", job->priority == 0);
	if (job->begin_time > 0)
		add_number(out, "begin", (uint64_t)job->begin_time, NO_VAL64);
	add_mark(out, "dependency", given(job->dependency));
	add_string(out, "preflight", request_preflight(job));
	add_mark(out, "exclusive", job->shared == 0);
	add_mark(out, "enforce_binding", (job->bitflags & GRES_ENFORCE_BIND) != 0);
	add_mark(out, "no_requeue", job->requeue == 0);
	text_addf(out, "client=%s\n", request_is_batch(job) ? "batch" : "alloc");
	/* Not a partition's default: a job without a limit ends after a year for Slurm. */
	add_number(out, "time_limit", job->time_limit == INFINITE ? YEAR : job->time_limit, NO_VAL);
	add_string(out, "tres_per_job", job->tres_per_job);
	add_string(out, "tres_per_node", job->tres_per_node);
	add_string(out, "tres_per_socket", job->tres_per_socket);
	add_string(out, "tres_per_task", job->tres_per_task);
	add_string(out, "cpus_per_tres", job->cpus_per_tres);
	add_string(out, "mem_per_tres", job->mem_per_tres);
	if (ntasks_per_gpu_given(job))
		add_number(out, "ntasks_per_tres", job->ntasks_per_tres, NO_VAL16);
	add_number(out, "sockets_per_node", job->sockets_per_node, NO_VAL16);
	if (number_given(job->threads_per_core))
		add_number(out, "threads_per_core", job->threads_per_core, NO_VAL16);
	if (number_given(job->ntasks_per_core))
		add_number(out, "ntasks_per_core", job->ntasks_per_core, NO_VAL16);
	add_number(out, "num_tasks", job->num_tasks, NO_VAL);
	add_number(out, "ntasks_per_node", job->ntasks_per_node, NO_VAL16);
	add_number(out, "cpus_per_task", job->cpus_per_task, NO_VAL16);
	add_number(out, "min_cpus", job->min_cpus, NO_VAL);
	add_number(out, "pn_min_cpus", job->pn_min_cpus, NO_VAL16);
	add_number(out, "min_nodes", job->min_nodes, NO_VAL);
	add_number(out, "max_nodes", job->max_nodes, NO_VAL);
	add_memory(out, job);
	add_number(out, "gpus", expected->gpus, 0);
	add_switches(out, job);
	add_slurms_own(out, job);
	add_signal(out, job, flags);
	add_flags(out, flags);
}

bool request_says_more(const job_desc_msg_t *job)
{
	bool one_node =
	    request_nodes(job) == 1 && (job->max_nodes == 1 || gpus_in(job->tres_per_job) < 2);
	bool of_gpus = given(job->cpus_per_tres) || ntasks_per_gpu_given(job) ||
		       (job->bitflags & GRES_ENFORCE_BIND);
	bool of_nodes = job->shared == 0 || number_given(job->sockets_per_node) ||
			(job->req_switch && job->req_switch != NO_VAL) || given(job->prefer) ||
			given(job->reservation) || all_memory(job) ||
			(job->features && strpbrk(job->features, "*[],"));
	struct text slurms_own;
	bool more;

	text_init(&slurms_own, SEGMENT_BODY_MAX);
	request_slurms_own(job, &slurms_own);
	more = slurms_own.len || slurms_own.failed || of_gpus || of_nodes;
	text_free(&slurms_own);
	return more || !one_node || !request_is_batch(job);
}

void request_asked(const job_desc_msg_t *job, struct text *out)
{
	const struct {
		const char *name;
		const char *value;
	} fields[] = {
	    {"tres_per_job", job->tres_per_job},
	    {"tres_per_node", job->tres_per_node},
	    {"tres_per_socket", job->tres_per_socket},
	    {"tres_per_task", job->tres_per_task},
	};

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		if (!given(fields[i].value))
			continue;
		if (out->len)
			text_add(out, ";");
		text_add(out, fields[i].name);
		text_add(out, ":");
		text_add(out, fields[i].value);
	}
}
