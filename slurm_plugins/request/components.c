/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slurm never gives one node to two components of a heterogeneous job, and components that are
 * pinned to one node wait for ever. slurmctld submits one component after another in one thread, so
 * what the thread remembers is what the components before this one got.
 */
#include "request/request.h"

#include <stdio.h>
#include <string.h>

/* A thread that never meets a heterogeneous job never has this memory. */
static __thread char taken[REPLY_MAX_BYTES];

void component_begin(const job_desc_msg_t *job)
{
	if (job->het_job_offset == 0)
		taken[0] = '\0';
}

void component_end(const job_desc_msg_t *job)
{
	size_t len;

	if (job->het_job_offset == NO_VAL || !job->req_nodes || !*job->req_nodes)
		return;
	len = strlen(taken);
	/* More nodes than fit are for berthd's next pass to sort out. */
	if (len + 1 + strlen(job->req_nodes) < sizeof(taken))
		snprintf(taken + len, sizeof(taken) - len, "%s%s", len ? "," : "", job->req_nodes);
}

const char *components_nodes(const job_desc_msg_t *job)
{
	return job->het_job_offset == NO_VAL ? "" : taken;
}
