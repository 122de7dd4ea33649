/* SPDX-License-Identifier: Apache-2.0 */
/* Every SPANK hook of Berth; what it does is in the file of its context. */
#include "common/needed.h"
#include "common/slurm_api.h"
#include "spank/spank_api.h"
#include "spank/spank_client.h"
#include "spank/spank_node.h"

SPANK_PLUGIN(berth, 1);

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 5, 0)
/* Whatever goes wrong in here is never the node's fault. */
int slurm_spank_init_failure_mode = ESPANK_JOB_FAILURE;
#endif

static const struct needed needed[] = {
    NEEDED(slurm_error),
    NEEDED(slurm_info),
    NEEDED(spank_context),
    NEEDED(spank_get_item),
    NEEDED(spank_getenv),
    NEEDED(spank_job_control_setenv),
    NEEDED(spank_job_control_unsetenv),
    NEEDED(spank_option_getopt),
    NEEDED(spank_option_register),
    NEEDED(spank_prepend_task_argv),
    NEEDED(spank_setenv),
    NEEDED(spank_unsetenv),
};
/* Does this Slurm lack one? Then it knows no flag of Berth's. */
static bool idle;

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
	(void)argc;
	(void)argv;
	idle = !slurm_has(needed, sizeof(needed) / sizeof(*needed));
	if (idle)
		return ESPANK_SUCCESS;
	switch (spank_context()) {
	case S_CTX_LOCAL:
		spank_client_prepare_srun();
		return spank_client_register(spank, 1);
	case S_CTX_ALLOCATOR:
		spank_client_forget_outer_job();
		return spank_client_register(spank, 1);
	case S_CTX_REMOTE:
		/* slurmstepd wants to know the flags that it passes on; nothing fails there. */
		spank_client_register(spank, 0);
		return ESPANK_SUCCESS;
	default:
		return ESPANK_SUCCESS;
	}
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv)
{
	(void)argc;
	(void)argv;
	if (idle)
		return ESPANK_SUCCESS;
	if (spank_context() == S_CTX_ALLOCATOR || spank_context() == S_CTX_LOCAL) {
		spank_client_part_the_flags(spank);
		spank_client_hand_on_preflight(spank);
	}
	return ESPANK_SUCCESS;
}

int slurm_spank_task_init_privileged(spank_t spank, int argc, char **argv)
{
	if (!idle)
		spank_node_inspect(spank, argc, argv);
	return ESPANK_SUCCESS;
}

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
	(void)argc;
	(void)argv;
	if (idle)
		return ESPANK_SUCCESS;
	spank_node_prepare(spank);
	spank_node_preflight(spank);
	return ESPANK_SUCCESS;
}
