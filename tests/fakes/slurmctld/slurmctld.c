/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As much of slurmctld as the job_submit plugin sees of it, so that the whole plugin runs inside a
 * test: Slurm's allocator and log, nodes n1 to n9, partitions whose names tell whom they admit, and
 * job descriptions whose fields are set and read by name. A job's record is its name as Slurm's log
 * writes it, "JobId=18_3(21)".
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job_submit/job_submit.h"

int init(void);
int fini(void);
int job_submit(job_desc_msg_t *job, uint32_t submit_uid, char **err_msg);
int job_modify(job_desc_msg_t *job, job_record_t *record, uint32_t submit_uid, char **err_msg);

char *vxstrfmt(const char *format, va_list arguments);
void *find_node_record_no_alias(const char *name);
part_record_t *find_part_record(char *name);
int validate_group(part_record_t *partition, uid_t uid);
bool validate_operator(uid_t uid);
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

void *slurm_xrecalloc(void **item, size_t count, size_t size, bool clear, bool try,
		      const char *file, int line, const char *function)
{
	void *longer = realloc(*item, count * size);

	(void)clear, (void)try, (void)file, (void)line, (void)function;
	if (longer)
		*item = longer;
	return longer;
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
static _Atomic unsigned groups_asked;

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

/* User 4242 has AdminLevel=Operator. */
bool validate_operator(uid_t uid)
{
	return uid == 4242;
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
	job->site_factor = job->time_min = NO_VAL;
	job->pn_min_memory = NO_VAL64;
	job->cpus_per_task = job->pn_min_cpus = job->ntasks_per_node = job->ntasks_per_tres =
	    NO_VAL16;
	job->contiguous = job->core_spec = job->segment_size = job->cores_per_socket = NO_VAL16;
	job->ntasks_per_socket = job->ntasks_per_core = job->sockets_per_node = NO_VAL16;
	job->threads_per_core = job->shared = job->requeue = NO_VAL16;
	job->overcommit = NO_VAL8;
	return job;
}

/* A text, or a number of `size` bytes, whose NO_VAL ends in 0xfe as each of Slurm's does. */
static const struct field {
	const char *name;
	size_t offset, size;
} fields[] = {
#define TEXT(field)                                                                                \
	{                                                                                          \
#field, offsetof(job_desc_msg_t, field), 0                                         \
	}
#define NUMBER(field)                                                                              \
	{                                                                                          \
#field, offsetof(job_desc_msg_t, field), sizeof(((job_desc_msg_t *)NULL)->field)   \
	}
    TEXT(account),
    TEXT(admin_comment),
    TEXT(array_inx),
    TEXT(cpus_per_tres),
    TEXT(dependency),
    TEXT(exc_nodes),
    TEXT(extra),
    TEXT(features),
    TEXT(job_id_str),
    TEXT(job_size_str),
    TEXT(licenses),
    TEXT(mem_per_tres),
    TEXT(name),
    TEXT(partition),
    TEXT(prefer),
    TEXT(qos),
    TEXT(req_nodes),
    TEXT(reservation),
    TEXT(script),
    TEXT(submit_line),
    TEXT(tres_bind),
    TEXT(tres_freq),
    TEXT(tres_per_job),
    TEXT(tres_per_node),
    TEXT(tres_per_task),
    TEXT(tres_per_socket),
    NUMBER(begin_time),
    NUMBER(bitflags),
    NUMBER(contiguous),
    NUMBER(cpus_per_task),
    NUMBER(fed_siblings_viable),
    NUMBER(het_job_offset),
    NUMBER(max_nodes),
    NUMBER(min_cpus),
    NUMBER(min_nodes),
    NUMBER(ntasks_per_core),
    NUMBER(ntasks_per_node),
    NUMBER(ntasks_per_tres),
    NUMBER(num_tasks),
    NUMBER(overcommit),
    NUMBER(pn_min_cpus),
    NUMBER(pn_min_memory),
    NUMBER(req_switch),
    NUMBER(requeue),
    NUMBER(segment_size),
    NUMBER(shared),
    NUMBER(site_factor),
    NUMBER(sockets_per_node),
    NUMBER(task_dist),
    NUMBER(threads_per_core),
    NUMBER(time_limit),
    NUMBER(time_min),
    NUMBER(user_id),
    NUMBER(wait4switch),
    NUMBER(warn_flags),
    NUMBER(warn_signal),
};

static const struct field *field_called(const char *name)
{
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		if (!strcmp(fields[i].name, name))
			return &fields[i];
	return NULL;
}

static char **text_of(job_desc_msg_t *job, const struct field *field)
{
	return (char **)((char *)job + field->offset);
}

static char **longer(char **list, uint32_t *count, const char *word)
{
	list = realloc(list, (*count + 1) * sizeof(char *));
	if (!list)
		abort();
	list[(*count)++] = strdup(word);
	return list;
}

/* Licenses= of slurm.conf. */
void fake_licenses(const char *of_the_site)
{
	set_string(&slurm_conf.licenses, of_the_site);
}

/*
 * `argument` is one more word of the script and its arguments, `environment` one more variable.
 * 0 where it is no field that is known here.
 */
int fake_set(job_desc_msg_t *job, const char *name, const char *value)
{
	const struct field *field = field_called(name);
	uint64_t number = strtoull(value, NULL, 10);

	if (!strcmp(name, "argument"))
		job->argv = longer(job->argv, &job->argc, value);
	else if (!strcmp(name, "spank_job_env"))
		job->spank_job_env = longer(job->spank_job_env, &job->spank_job_env_size, value);
	else if (!strcmp(name, "environment"))
		job->environment = longer(job->environment, &job->env_size, value);
	else if (field && !field->size)
		set_string(text_of(job, field), value);
	else if (field)
		memcpy((char *)job + field->offset, &number, field->size);
	return field || !strcmp(name, "argument") || !strcmp(name, "environment") ||
	       !strcmp(name, "spank_job_env");
}

int fake_get(job_desc_msg_t *job, const char *name, char *value, size_t size)
{
	const struct field *field = field_called(name);
	uint64_t number = 0, none = NO_VAL64;

	if (!strcmp(name, "environment")) {
		size_t used = 0;

		for (uint32_t i = 0; i < job->env_size; i++)
			used += (size_t)snprintf(value + used, size - used, "%s%s",
						 used ? "\n" : "", job->environment[i]);
		return job->env_size > 0;
	}
	if (!field)
		return 0;
	if (!field->size) {
		const char *text = *text_of(job, field);

		return text && snprintf(value, size, "%s", text) >= 0;
	}
	memcpy(&number, (char *)job + field->offset, field->size);
	none &= UINT64_MAX >> (64 - 8 * field->size);
	return number && number != none && snprintf(value, size, "%" PRIu64, number) > 0;
}

/* As SPANK passes a flag: "_SLURM_SPANK_OPTION_berth_gpu_tier=opportunistic". */
void fake_flag(job_desc_msg_t *job, const char *entry)
{
	job->spank_job_env = longer(job->spank_job_env, &job->spank_job_env_size, entry);
}

static void free_words(char **list, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		free(list[i]);
	free(list);
}

void fake_end(job_desc_msg_t *job)
{
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		if (!fields[i].size)
			set_string(text_of(job, &fields[i]), NULL);
	free_words(job->spank_job_env, job->spank_job_env_size);
	free_words(job->argv, job->argc);
	free_words(job->environment, job->env_size);
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
