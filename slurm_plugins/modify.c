/* SPDX-License-Identifier: Apache-2.0 */
/* Which changes of a waiting job would break its pin. */
#include "job_submit.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "ask.h"
#include "pinned.h"

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
#define NUMBER_OF(change) ((change)->step_id.job_id)
#else
#define NUMBER_OF(change) ((change)->job_id)
#endif

/* A change carries only what it changes. An empty text is a change too: it clears the field. */
static bool touches_place(const job_desc_msg_t *change)
{
	bool texts = change->req_nodes || change->extra || change->tres_per_job ||
		     change->tres_per_node || change->tres_per_socket || change->tres_per_task ||
		     change->cpus_per_tres || change->mem_per_tres;
	bool counts = change->min_nodes != NO_VAL || change->max_nodes != NO_VAL ||
		      change->min_cpus != NO_VAL || change->max_cpus != NO_VAL ||
		      change->num_tasks != NO_VAL || change->cpus_per_task != NO_VAL16 ||
		      change->pn_min_cpus != NO_VAL16 || change->pn_min_memory != NO_VAL64 ||
		      change->ntasks_per_node != NO_VAL16 || change->ntasks_per_tres != NO_VAL16;

	return texts || counts;
}

typedef char *(*slurm_formatter)(const char *format, va_list arguments);

static char *formatted(slurm_formatter formatter, const char *format, ...)
{
	char *made;
	va_list arguments;

	va_start(arguments, format);
	made = formatter(format, arguments);
	va_end(arguments);
	return made;
}

/*
 * A record has no public layout, but Slurm's log formatter writes a record's own id. What the
 * change itself says is a way around for the day that it is gone: it may name an array where one
 * task is meant.
 */
static uint32_t record_id(const job_desc_msg_t *change, const job_record_t *record)
{
	slurm_formatter formatter;
	uint32_t id = 0;

	*(void **)&formatter = dlsym(RTLD_DEFAULT, "vxstrfmt");
	if (formatter) {
		char *name = formatted(formatter, "%pJ", record);

		id = name ? pinned_record_id(name) : 0;
		slurm_xfree((void **)&name);
	}
	if (!id && change->job_id_str)
		id = pinned_record_id(change->job_id_str);
	return id ? id : NUMBER_OF(change);
}

/* The job as the user called it. */
static void name_job(const job_desc_msg_t *change, uint32_t id, char *name, size_t size)
{
	if (change->job_id_str)
		snprintf(name, size, "%s", change->job_id_str);
	else
		snprintf(name, size, "%" PRIu32, id);
}

bool change_breaks_pin(const job_desc_msg_t *change, const job_record_t *record,
		       char message[MESSAGE_MAX + 1])
{
	const char *path = hook_config()->pinned_file;
	char name[64];
	uint32_t id;

	if (!*path || !touches_place(change))
		return false;
	id = record_id(change, record);
	if (!pinned_lists(path, id))
		return false;
	name_job(change, id, name, sizeof(name));
	snprintf(message, MESSAGE_MAX + 1,
		 "berth: job %s has a planned place, so its node list, its Extra and how many "
		 "nodes, GPUs, CPUs, tasks and how much memory it asks for cannot change while it "
		 "waits; cancel it and submit it again, or ask your administrator",
		 name);
	return true;
}
