/* SPDX-License-Identifier: Apache-2.0 */
#include "config/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config_table.h"
#include "text/limits.h"

#define MEMBER(table, field)                                                                       \
	offsetof(struct table##_config, field), sizeof(((struct table##_config *)0)->field)
#include "config/keys.h"

void config_defaults(struct hook_config *config)
{
	*config = hook_defaults;
}

bool config_parse(const char *text, struct hook_config *config, char error[CONFIG_ERROR_MAX])
{
	return table_parse(text, &hook_table, config, error);
}

bool config_load(const char *path, struct hook_config *config, char error[CONFIG_ERROR_MAX])
{
	return table_load(path, &hook_table, config, error);
}

bool config_load_notice(const char *path, struct notice_config *config,
			char error[CONFIG_ERROR_MAX])
{
	return table_load(path, &notice_table, config, error);
}

bool config_load_preflight(const char *path, struct preflight_config *config,
			   char error[CONFIG_ERROR_MAX])
{
	return table_load(path, &preflight_table, config, error);
}

bool config_path(const char *slurm_conf, char path[CONFIG_TEXT_MAX + 1])
{
	const char *own = getenv("BERTH_CONF");
	const char *slash;
	int len;

	if (own && *own) {
		len = snprintf(path, CONFIG_TEXT_MAX + 1, "%s", own);
	} else {
		if (!slurm_conf || !*slurm_conf)
			slurm_conf = "/etc/slurm/slurm.conf";
		slash = strrchr(slurm_conf, '/');
		len = snprintf(path, CONFIG_TEXT_MAX + 1, "%.*sberth.conf",
			       slash ? (int)(slash - slurm_conf + 1) : 0, slurm_conf);
	}
	return len >= 0 && len <= CONFIG_TEXT_MAX;
}

/* The next name of a comma-separated list; *list moves behind it. */
static const char *next_name(const char **list, size_t *len)
{
	const char *name = *list + strspn(*list, ", ");

	*len = strcspn(name, ", ");
	*list = name + *len;
	return *len ? name : NULL;
}

static bool is_skipped(const struct hook_config *config, const char *name, size_t len)
{
	const char *skip = config->skip_partitions;
	const char *skipped;
	size_t skipped_len;

	while ((skipped = next_name(&skip, &skipped_len)))
		if (len == skipped_len && !strncmp(name, skipped, len))
			return true;
	return false;
}

bool config_skips(const struct hook_config *config, const char *partitions)
{
	const char *name;
	size_t len;
	bool any = false;

	/* Slurm takes no longer list, and each name is looked for among the site's. */
	if (partitions && strnlen(partitions, SLURM_TEXT_MAX + 1) > SLURM_TEXT_MAX)
		return false;
	while (partitions && (name = next_name(&partitions, &len))) {
		if (!is_skipped(config, name, len))
			return false;
		any = true;
	}
	return any;
}
