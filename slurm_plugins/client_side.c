/* SPDX-License-Identifier: Apache-2.0 */
#include "client_side.h"

#include <stdlib.h>
#include <unistd.h>

#include "config.h"
#include "tres.h"

bool client_skips(const char *partition)
{
	char path[CONFIG_TEXT_MAX + 1];
	char error[CONFIG_ERROR_MAX];
	struct hook_config config;

	/* A broken file is slurmctld's to complain about, not each user's. */
	if (!config_path(getenv("SLURM_CONF"), path) || !config_load(path, &config, error))
		return false;
	return config_skips(&config, partition);
}

bool inside_allocation(void)
{
	return getenv("SLURM_JOB_ID") || getenv("SLURM_JOBID");
}

void client_strip_environment(void)
{
	/* What is left is never longer, so the entries are rewritten where they stand. */
	for (char **entry = environ; entry && *entry; entry++)
		env_strip_models(*entry);
}
