/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that are larger than any honest one. Reading them would cost berthd the time in which it
 * answers everybody else, so they are not sent: whatever this looks at, it looks at no more of it
 * than the bound.
 */
#include "request/request.h"

#include <string.h>

struct bound {
	const char *value;
	size_t bytes;
	const char *separators; /* between words */
	size_t words;
	const char *too_long;
	const char *too_many;
};

/* Lists of nodes have no end for Slurm either. */
static const char *beyond(const struct bound *bound, bool endless)
{
	size_t words = 1, most = endless ? FOREIGN_TEXT_MAX : bound->bytes;

	if (!bound->value || (endless && bound->bytes == NODE_LIST_MAX))
		return NULL;
	if (strnlen(bound->value, most + 1) > most)
		return bound->too_long;
	for (const char *s = bound->value; !endless && bound->separators && *s; s++)
		words += strchr(bound->separators, *s) != NULL;
	return bound->separators && words > bound->words ? bound->too_many : NULL;
}

/* What a name or a TRES text may have, and what a list of nodes. */
#define TEXT(field, option)                                                                        \
	{                                                                                          \
		.value = (field), .bytes = FIELD_MAX,                                              \
		.too_long = "its " option " is longer than 4096 bytes"                             \
	}
#define NODES(field, option)                                                                       \
	{                                                                                          \
		.value = (field), .bytes = NODE_LIST_MAX,                                          \
		.too_long = "its " option " is longer than 32768 bytes"                            \
	}

const char *request_too_large(const job_desc_msg_t *job, bool endless)
{
	const struct bound bounds[] = {
	    {job->partition, FIELD_MAX, ",", PARTITIONS_MAX,
	     "its list of partitions is longer than 4096 bytes",
	     "it lists more than 64 partitions"},
	    {job->features, FIELD_MAX, "&|,", FEATURES_MAX,
	     "its --constraint is longer than 4096 bytes",
	     "its --constraint has more than 256 features"},
	    NODES(job->req_nodes, "--nodelist"),
	    NODES(job->exc_nodes, "--exclude"),
	    TEXT(job->account, "account"),
	    TEXT(job->name, "name"),
	    TEXT(job->qos, "QOS"),
	    TEXT(job->reservation, "--reservation"),
	    TEXT(job->licenses, "--licenses"),
	    TEXT(job->prefer, "--prefer"),
	    TEXT(job->array_inx, "--array"),
	    TEXT(job->tres_per_job, "number of GPUs"),
	    TEXT(job->tres_per_node, "--gres"),
	    TEXT(job->tres_per_socket, "--gpus-per-socket"),
	    TEXT(job->tres_per_task, "--tres-per-task"),
	    TEXT(job->cpus_per_tres, "--cpus-per-gpu"),
	    TEXT(job->mem_per_tres, "--mem-per-gpu"),
	    TEXT(job->tres_bind, "--gpu-bind"),
	    TEXT(job->extra, "Extra"),
	};

	for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++) {
		const char *why = beyond(&bounds[i], endless);

		if (why)
			return why;
	}
	return NULL;
}
