/* SPDX-License-Identifier: Apache-2.0 */
/* srun within a pre-flight: whatever it asks for, there is one task's part of one node. */
#include "cli_filter/preflight.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/slurm_api.h"
#include "text/text.h"

static const char *const dropped[] = {
    "ntasks-per-node",
    "ntasks-per-gpu",
    "ntasks-per-tres",
    "ntasks-per-socket",
    "ntasks-per-core",
    "nodelist",
    "nodefile",
    "exclude",
    "relative",
    "distribution",
    "gpu-bind",
    "tres-bind",
    "exclusive",
    "exact",
    "mem",
    "mem-per-cpu",
    "mem-per-gpu",
    "cpus-per-gpu",
    "contiguous",
    "switches",
    "extra-node-info",
    "sockets-per-node",
    "cores-per-socket",
    "mincpus",
};

/* No more CPUs than the pre-flight has. */
static void bound_cpus(slurm_opt_t *opt)
{
	const char *here = getenv("SLURM_CPUS_ON_NODE");
	char *value = slurm_option_isset(opt, "cpus-per-task")
			  ? slurm_option_get(opt, "cpus-per-task")
			  : NULL;
	uint64_t most;

	if (value && here && parse_number(here, 65536, &most) && strtoull(value, NULL, 10) > most)
		slurm_option_set(opt, "cpus-per-task", here, false);
	slurm_xfree((void **)&value);
}

int preflight_step(slurm_opt_t *opt)
{
	int rc;

	for (size_t i = 0; i < sizeof(dropped) / sizeof(dropped[0]); i++)
		slurm_option_reset(opt, dropped[i]);
	bound_cpus(opt);
	rc = requests_drop_gpus(opt);
	rc |= slurm_option_set(opt, "nodes", "1", false);
	rc |= slurm_option_set(opt, "ntasks", "1", false);
	/* Several at the same time are several parts of one program: none may wait for another. */
	rc |= slurm_option_set(opt, "overlap", NULL, false);
	return rc == SLURM_SUCCESS ? SLURM_SUCCESS : SLURM_ERROR;
}
