/* SPDX-License-Identifier: Apache-2.0 */
#include "common/client_side.h"

#include <stdlib.h>
#include <unistd.h>

#include "config/config.h"
#include "text/tres.h"

/* A broken file is slurmctld's to complain about, not each user's: it means the defaults. */
static struct hook_config read_config(void)
{
	char path[CONFIG_TEXT_MAX + 1];
	char error[CONFIG_ERROR_MAX];
	struct hook_config config;

	if (!config_path(getenv("SLURM_CONF"), path) || !config_load(path, &config, error))
		config_defaults(&config);
	return config;
}

bool client_skips(const char *partition)
{
	struct hook_config config = read_config();

	return config_skips(&config, partition);
}

bool client_leaves_requests(const char *partition)
{
	struct hook_config config = read_config();

	return config.layout == LAYOUT_PLAIN || config_skips(&config, partition);
}

bool client_is_silent(void)
{
	return read_config().message == MESSAGE_NEVER;
}

void client_preflight_config(struct preflight_config *config)
{
	char path[CONFIG_TEXT_MAX + 1];
	char error[CONFIG_ERROR_MAX];

	/* Left at its defaults where there is no such file, or a broken one. */
	if (!config_path(getenv("SLURM_CONF"), path))
		path[0] = '\0';
	config_load_preflight(path, config, error);
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
