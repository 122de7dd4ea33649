/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pre-flight's script runs under Berth's runner, with the user's own rights. Without it the
 * pre-flight ends at once, and well: the job itself then comes to run as if it had none.
 */
#include "spank/spank_preflight.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/messages.h"
#include "common/preflight_names.h"
#include "common/slurm_api.h"
#include "text/limits.h"
#include "text/text.h"

/* Berth's own, whatever the job's environment says to Pythons (-I). */
#define PYTHON "/opt/berth/bin/python"
#define RUNNER "prolog_epilog.preflight.runner"
#define ARGUMENT "preflight="
#define LONGEST_S 86400
/* pyxis puts the batch script, too, into the container. */
#define PYXIS_IMAGE "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_image"

int spank_preflight_knows(const char *argument)
{
	return !strncmp(argument, ARGUMENT "/", strlen(ARGUMENT "/"));
}

static const char *python_of(int argc, char **argv)
{
	const char *python = PYTHON;

	for (int i = 0; i < argc; i++)
		if (spank_preflight_knows(argv[i]))
			python = argv[i] + strlen(ARGUMENT);
	return python;
}

static bool in_a_container(spank_t spank)
{
	char image[1];

	/* Even a value that is too long for us was given. */
	return spank_getenv(spank, PYXIS_IMAGE, image, sizeof(image)) != ESPANK_ENV_NOEXIST;
}

void spank_preflight_begin(spank_t spank, int argc, char **argv)
{
	const char *python = python_of(argc, argv);
	char seconds[16], option[32];
	const char *words[] = {python, "-I", "-m", RUNNER, option, "--"};
	uint64_t number;
	uint32_t step;

	if (spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS ||
	    step != SLURM_BATCH_SCRIPT ||
	    spank_getenv(spank, "SLURM_SPANK_" PREFLIGHT_SECONDS, seconds, sizeof(seconds)) !=
		ESPANK_SUCCESS ||
	    !parse_number(seconds, LONGEST_S, &number))
		return;
	snprintf(option, sizeof(option), "--seconds=%s", seconds);
	spank_setenv(spank, PREFLIGHT_HERE, "1", 1);
	if (!in_a_container(spank) && access(python, X_OK) == 0 &&
	    spank_prepend_task_argv(spank, sizeof(words) / sizeof(words[0]), words) ==
		ESPANK_SUCCESS)
		return;
	slurm_error(
	    "berth: the pre-flight is left out: %s cannot be started here. In a container it "
	    "never can; else tell your administrator" BERTH_ID(844),
	    python);
	_exit(EXIT_SUCCESS);
}
