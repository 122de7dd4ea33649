/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As much of slurmctld as the job_submit plugin sees of it, so that the whole plugin runs inside a
 * test: Slurm's allocator and log, nodes n1 to n9, partitions whose names tell whom they admit, and
 * job descriptions whose fields are set and read by name. A job's record is its name as Slurm's log
 * writes it, "JobId=18_3(21)".
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job_submit.h"

int init(void);
int fini(void);
int job_submit(job_desc_msg_t *job, uint32_t submit_uid, char **err_msg);
int job_modify(job_desc_msg_t *job, job_record_t *record, uint32_t submit_uid, char **err_msg);

char *vxstrfmt(const char *format, va_list arguments);
void *find_node_record_no_alias(const char *name);
part_record_t *find_part_record(char *name);
int validate_group(part_record_t *partition, uid_t uid);
unsigned fake_groups_asked(void);
void *fake_job(void);
void fake_end(job_desc_msg_t *job);
int fake_set(job_desc_msg_t *job, const char *field, const char *value);
int fake_get(job_desc_msg_t *job, const char *field, char *value, size_t size);
void fake_flag(job_desc_msg_t *job, const char *entry);
void fake_licenses(const char *of_the_site);
int fake_submit(job_desc_msg_t *job, uint32_t uid, char *said, size_t size);
int fake_modify(job_desc_msg_t *job, const char *record, uint32_t uid, char *said, size_t size);

slurm_conf_t slurm_conf;
char *default_part_name = "gpu";

static void say(const char *format, va_list arguments)
{
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
}

void slurm_error(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	say(format, arguments);
	va_end(arguments);
}

void slurm_info(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	say(format, arguments);
	va_end(arguments);
}

char *slurm_xstrdup(const char *s)
{
	return s ? strdup(s) : NULL;
}

void slurm_xfree(void **item)
{
	free(*item);
	*item = NULL;
}

/* "%pJ" is all that the plugin asks for. */
char *vxstrfmt(const char *format, va_list arguments)
{
	return strcmp(format, "%pJ") ? NULL : strdup(*va_arg(arguments, const char **));
}

void *find_node_record_no_alias(const char *name)
{
	return name[0] == 'n' && name[1] >= '1' && name[1] <= '9' && !name[2] ? &slurm_conf : NULL;
}

/* A partition's record is its name. */
part_record_t *find_part_record(char *name)
{
	return strcmp(name, "nowhere") ? (part_record_t *)name : NULL;
}

/* How often the plugin has asked whom a partition admits: once a name in each request it writes. */
static unsigned groups_asked;

unsigned fake_groups_asked(void)
{
	return groups_asked;
}

/* Of "of12345" user 12345 alone is in its groups. */
int validate_group(part_record_t *partition, uid_t uid)
{
	const char *name = (const char *)partition;

	groups_asked++;
	return strncmp(name, "of", 2) != 0 || strtoul(name + 2, NULL, 10) == uid;
}

/* As slurm_init_job_desc_msg() leaves it, for the fields that the plugin looks at. */
void *fake_job(void)
{
	job_desc_msg_t *job = calloc(1, sizeof(*job));

	if (!job)
		abort();
	job->user_id = job->priority = job->min_cpus = job->max_cpus = NO_VAL;
	job->min_nodes = job->max_nodes = job->num_tasks = job->time_limit = NO_VAL;
	job->pn_min_tmp_disk = job->req_switch = job->wait4switch = job->het_job_offset = NO_VAL;
	job->site_factor = NO_VAL;
	job->pn_min_memory = NO_VAL64;
	job->cpus_per_task = job->pn_min_cpus = job->ntasks_per_node = job->ntasks_per_tres =
	    NO_VAL16;
	job->contiguous = job->core_spec = job->segment_size = job->cores_per_socket = NO_VAL16;
	job->ntasks_per_socket = job->ntasks_per_core = job->sockets_per_node = NO_VAL16;
	job->threads_per_core = job->shared = job->requeue = NO_VAL16;
	return job;
}

static char **text_field(job_desc_msg_t *job, const char *name)
{
	const struct {
		const char *name;
		char **field;
	} fields[] = {
	    {"admin_comment", &job->admin_comment},
	    {"cpus_per_tres", &job->cpus_per_tres},
	    {"extra", &job->extra},
	    {"features", &job->features},
	    {"job_id_str", &job->job_id_str},
	    {"licenses", &job->licenses},
	    {"mem_per_tres", &job->mem_per_tres},
	    {"partition", &job->partition},
	    {"qos", &job->qos},
	    {"req_nodes", &job->req_nodes},
	    {"reservation", &job->reservation},
	    {"script", &job->script},
	    {"submit_line", &job->submit_line},
	    {"tres_bind", &job->tres_bind},
	    {"tres_freq", &job->tres_freq},
	    {"tres_per_job", &job->tres_per_job},
	    {"tres_per_node", &job->tres_per_node},
	    {"tres_per_task", &job->tres_per_task},
	    {"tres_per_socket", &job->tres_per_socket},
	};

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		if (!strcmp(fields[i].name, name))
			return fields[i].field;
	return NULL;
}

/* One more word of the script and its arguments. */
static void add_argument(job_desc_msg_t *job, const char *word)
{
	job->argv = realloc(job->argv, (job->argc + 1) * sizeof(char *));
	if (!job->argv)
		abort();
	job->argv[job->argc++] = strdup(word);
}

static uint16_t *short_field(job_desc_msg_t *job, const char *name)
{
	if (!strcmp(name, "cpus_per_task"))
		return &job->cpus_per_task;
	if (!strcmp(name, "ntasks_per_node"))
		return &job->ntasks_per_node;
	return NULL;
}

static uint32_t *number_field(job_desc_msg_t *job, const char *name)
{
	const struct {
		const char *name;
		uint32_t *field;
	} fields[] = {
	    {"min_cpus", &job->min_cpus},     {"min_nodes", &job->min_nodes},
	    {"max_nodes", &job->max_nodes},   {"num_tasks", &job->num_tasks},
	    {"time_limit", &job->time_limit},
	};

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		if (!strcmp(fields[i].name, name))
			return fields[i].field;
	return NULL;
}

/* Licenses= of slurm.conf. */
void fake_licenses(const char *of_the_site)
{
	set_string(&slurm_conf.licenses, of_the_site);
}

/* 0 where it is no field that is known here. */
int fake_set(job_desc_msg_t *job, const char *name, const char *value)
{
	char **field = text_field(job, name);

	if (field)
		set_string(field, value);
	else if (!strcmp(name, "argument"))
		add_argument(job, value);
	else if (!strcmp(name, "begin_time"))
		job->begin_time = (time_t)strtoull(value, NULL, 10);
	else if (number_field(job, name))
		*number_field(job, name) = (uint32_t)strtoul(value, NULL, 10);
	else if (short_field(job, name))
		*short_field(job, name) = (uint16_t)strtoul(value, NULL, 10);
	else
		return 0;
	return 1;
}

int fake_get(job_desc_msg_t *job, const char *name, char *value, size_t size)
{
	char **field = text_field(job, name);
	uint32_t *number = number_field(job, name);
	uint16_t *small = short_field(job, name);

	if (field && *field)
		snprintf(value, size, "%s", *field);
	else if (number && *number != NO_VAL)
		snprintf(value, size, "%u", (unsigned)*number);
	else if (small && *small != NO_VAL16)
		snprintf(value, size, "%u", (unsigned)*small);
	else
		return 0;
	return 1;
}

/* As SPANK passes a flag: "_SLURM_SPANK_OPTION_berth_gpu_tier=opportunistic". */
void fake_flag(job_desc_msg_t *job, const char *entry)
{
	job->spank_job_env =
	    realloc(job->spank_job_env, (job->spank_job_env_size + 1) * sizeof(char *));
	if (!job->spank_job_env)
		abort();
	job->spank_job_env[job->spank_job_env_size++] = strdup(entry);
}

void fake_end(job_desc_msg_t *job)
{
	static const char *const names[] = {
<<<<<<< HEAD
	    "admin_comment", "cpus_per_tres",	"extra",	"features",
	    "job_id_str",    "licenses",	"mem_per_tres", "partition",	"qos",
	    "req_nodes",     "script",		"tres_per_job", "tres_per_node",
	    "tres_per_task", "tres_per_socket", "reservation",	"submit_line"};
=======
	    "admin_comment", "cpus_per_tres", "extra",	       "features",	  "job_id_str",
	    "mem_per_tres",  "partition",     "qos",	       "req_nodes",	  "script",
	    "tres_per_job",  "tres_per_node", "tres_per_task", "tres_per_socket", "reservation",
	    "submit_line",   "licenses",      "tres_bind",     "tres_freq"};
>>>>>>> 9b13b2e (tres: requests are read as Slurm reads them, in every field that can give a job GRES)

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		set_string(text_field(job, names[i]), NULL);
	for (uint32_t i = 0; i < job->spank_job_env_size; i++)
		free(job->spank_job_env[i]);
	free(job->spank_job_env);
	for (uint32_t i = 0; i < job->argc; i++)
		free(job->argv[i]);
	free(job->argv);
	free(job);
}

static int told(int rc, char *err_msg, char *said, size_t size)
{
	snprintf(said, size, "%s", err_msg ? err_msg : "");
	free(err_msg);
	return rc;
}

int fake_submit(job_desc_msg_t *job, uint32_t uid, char *said, size_t size)
{
	char *err_msg = NULL;
	int rc = job_submit(job, uid, &err_msg);

	return told(rc, err_msg, said, size);
}

int fake_modify(job_desc_msg_t *job, const char *record, uint32_t uid, char *said, size_t size)
{
	char *err_msg = NULL;
	int rc = job_modify(job, (job_record_t *)&record, uid, &err_msg);

	return told(rc, err_msg, said, size);
}
