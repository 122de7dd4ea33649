/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into sbatch or scontrol: rewrites the job description right before
 * the command sends it to slurmctld, behind all that the command, its plugins
 * and its options check.
 *
 *   LD_PRELOAD=raw_rpc.so RAW_RPC='FIELD=VALUE
 *   FIELD=VALUE' sbatch ...
 *
 * %XX in a value is one byte. `argument`, `environment` and `spank_job_env` add
 * one word to a list. A field that is not known here ends the command with
 * status 99.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/slurm_api.h"

static const struct field {
	const char *name;
	size_t offset, size; /* size 0: a text */
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
    TEXT(burst_buffer),
    TEXT(comment),
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
    TEXT(network),
    TEXT(partition),
    TEXT(prefer),
    TEXT(qos),
    TEXT(req_nodes),
    TEXT(reservation),
    TEXT(submit_line),
    TEXT(tres_bind),
    TEXT(tres_freq),
    TEXT(tres_per_job),
    TEXT(tres_per_node),
    TEXT(tres_per_socket),
    TEXT(tres_per_task),
    TEXT(wckey),
    TEXT(work_dir),
    NUMBER(begin_time),
    NUMBER(bitflags),
    NUMBER(cpus_per_task),
    NUMBER(deadline),
    NUMBER(delay_boot),
    NUMBER(end_time),
    NUMBER(group_id),
    NUMBER(het_job_offset),
    NUMBER(max_cpus),
    NUMBER(max_nodes),
    NUMBER(min_cpus),
    NUMBER(min_nodes),
    NUMBER(nice),
    NUMBER(ntasks_per_node),
    NUMBER(ntasks_per_tres),
    NUMBER(num_tasks),
    NUMBER(pn_min_cpus),
    NUMBER(pn_min_memory),
    NUMBER(priority),
    NUMBER(requeue),
    NUMBER(req_switch),
    NUMBER(restart_cnt),
    NUMBER(segment_size),
    NUMBER(shared),
    NUMBER(site_factor),
    NUMBER(sockets_per_node),
    NUMBER(threads_per_core),
    NUMBER(time_limit),
    NUMBER(time_min),
    NUMBER(user_id),
    NUMBER(wait4switch),
    NUMBER(warn_flags),
    NUMBER(warn_signal),
    NUMBER(warn_time),
};

static char *rewrites;

/* Neither the job nor what the command starts is to be rewritten too. */
__attribute__((constructor)) static void begin(void)
{
	const char *asked = getenv("RAW_RPC");

	rewrites = asked ? strdup(asked) : NULL;
	unsetenv("RAW_RPC");
	unsetenv("LD_PRELOAD");
}

static void unescape(char *text)
{
	char *to = text;

	for (const char *from = text; *from; to++) {
		unsigned int byte;

		if (*from == '%' && sscanf(from + 1, "%2x", &byte) == 1) {
			*to = (char)byte;
			from += 3;
		} else {
			*to = *from++;
		}
	}
	*to = '\0';
}

static void add_word(char ***list, uint32_t *count, const char *word)
{
	slurm_xrecalloc((void **)list, *count + 2, sizeof(char *), true, false, __FILE__, __LINE__,
			__func__);
	(*list)[(*count)++] = slurm_xstrdup(word);
}

static bool set_field(job_desc_msg_t *job, const char *name, const char *value)
{
	uint64_t number = strtoull(value, NULL, 10);

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		char *field = (char *)job + fields[i].offset;

		if (strcmp(fields[i].name, name) != 0)
			continue;
		if (fields[i].size)
			memcpy(field, &number, fields[i].size);
		else
			set_string((char **)(void *)field, value);
		return true;
	}
	return false;
}

static void set_one(job_desc_msg_t *job, const char *name, const char *value)
{
	if (!strcmp(name, "argument")) {
		add_word(&job->argv, &job->argc, value);
	} else if (!strcmp(name, "environment")) {
		add_word(&job->environment, &job->env_size, value);
	} else if (!strcmp(name, "spank_job_env")) {
		add_word(&job->spank_job_env, &job->spank_job_env_size, value);
	} else if (!set_field(job, name, value)) {
		fprintf(stderr, "raw_rpc: no field %s\n", name);
		exit(99);
	}
}

static void rewrite(job_desc_msg_t *job)
{
	char *rest = rewrites ? strdup(rewrites) : NULL;

	for (char *line = rest; line && *line;) {
		char *next = strchr(line, '\n');
		char *equals;

		if (next)
			*next++ = '\0';
		equals = strchr(line, '=');
		if (equals) {
			*equals = '\0';
			unescape(equals + 1);
			set_one(job, line, equals + 1);
		}
		line = next;
	}
	free(rest);
}

int slurm_submit_batch_job(job_desc_msg_t *job, submit_response_msg_t **response)
{
	int (*send)(job_desc_msg_t *, submit_response_msg_t **);

	*(void **)&send = dlsym(RTLD_NEXT, "slurm_submit_batch_job");
	rewrite(job);
	return send(job, response);
}

int slurm_update_job2(job_desc_msg_t *job, job_array_resp_msg_t **response)
{
	int (*send)(job_desc_msg_t *, job_array_resp_msg_t **);

	*(void **)&send = dlsym(RTLD_NEXT, "slurm_update_job2");
	rewrite(job);
	return send(job, response);
}
