/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pre-flight's script runs under Berth's runner, with the user's own rights. If the runner cannot
 * start here, as in a container, the pre-flight ends at once: its job then runs as if it had none.
 */
#include "spank/spank_preflight.h"

#include <stdio.h>
#include <string.h>

#include "common/messages.h"
#include "common/preflight_names.h"
#include "common/slurm_api.h"

/* Berth's own, whatever the job's environment says to Pythons (-I). */
#define PYTHON "/opt/berth/bin/python"
#define RUNNER "prolog_epilog.preflight.runner"
#define ARGUMENT "preflight="

int spank_preflight_knows(const char *argument)
{
	return !strncmp(argument, ARGUMENT "/", strlen(ARGUMENT "/"));
}

void spank_preflight_begin(spank_t spank, int argc, char **argv)
{
	char how[32];
	const char *words[] = {PYTHON, "-I", "-m", RUNNER, how, "--"};
	uint32_t step;

	for (int i = 0; i < argc; i++)
		if (spank_preflight_knows(argv[i]))
			words[0] = argv[i] + strlen(ARGUMENT);
	if (spank_get_item(spank, S_JOB_STEPID, &step) == ESPANK_SUCCESS &&
	    step == SLURM_BATCH_SCRIPT &&
	    spank_getenv(spank, "SLURM_SPANK_" PREFLIGHT_SECONDS, how, sizeof(how)) ==
		ESPANK_SUCCESS &&
	    spank_prepend_task_argv(spank, sizeof(words) / sizeof(words[0]), words) !=
		ESPANK_SUCCESS)
		slurm_error("berth: this pre-flight runs without Berth's runner, up to Slurm's "
			    "limit" BERTH_ID(844));
}
