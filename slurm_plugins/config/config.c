/* SPDX-License-Identifier: Apache-2.0 */
#include "config/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config_table.h"
#include "text/limits.h"

#define MEMBER(type, field) offsetof(type, field), sizeof(((type *)0)->field)
#define FIELD(field) MEMBER(struct hook_config, field)
#define NOTICE(field) MEMBER(struct notice_config, field)
#define PREFLIGHT(field) MEMBER(struct preflight_config, field)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const struct key hook_keys[] = {
    {"socket", KEY_PATH, FIELD(socket), 0, 0, "an absolute path of at most 107 bytes"},
    {"deadline_ms", KEY_NUMBER, FIELD(deadline_ms), 1, 1000, "a whole number from 1 to 1000"},
    {"breaker_failures", KEY_NUMBER, FIELD(breaker_failures), 1, 1000,
     "a whole number from 1 to 1000"},
    {"breaker_seconds", KEY_NUMBER, FIELD(breaker_seconds), 1, 3600,
     "a whole number from 1 to 3600"},
    {"fail", KEY_FAIL, FIELD(fail_closed), 0, 0, "\"open\" or \"closed\""},
    {"skip_partitions", KEY_LIST, FIELD(skip_partitions), 0, 0,
     "partitions, comma-separated, at most 1023 bytes"},
    {"skipped_shards", KEY_ASK, FIELD(skipped_shards), 0, 0, "\"refuse\" or \"site\""},
    {"def_cpu_per_gpu", KEY_NUMBER, FIELD(def_cpu_per_gpu), 0, 1024,
     "a whole number from 0 to 1024"},
    {"layout", KEY_LAYOUT, FIELD(layout), 0, 0, "\"exact\" or \"plain\""},
    {"message", KEY_TELL, FIELD(message), 0, 0, "\"always\", \"flags\" or \"never\""},
    {"hook_log", KEY_PATH, FIELD(hook_log), 0, 0, "an absolute path of at most 1023 bytes"},
    {"pinned_file", KEY_PATH, FIELD(pinned_file), 0, 0, "an absolute path of at most 1023 bytes"},
};

static const struct hook_config hook_defaults = {
    .socket = "/run/berth/berthd.sock",
    /* slurmctld holds its locks meanwhile; an answer takes about 0.3 ms. */
    .deadline_ms = 50,
    .breaker_failures = 3,
    .breaker_seconds = 5,
    .message = MESSAGE_FLAGS,
    .pinned_file = "/run/berth/pinned",
};

static const struct table hook_table = {"hook", hook_keys, COUNT(hook_keys), &hook_defaults,
					sizeof(hook_defaults)};

static const struct key notice_keys[] = {
    {"hosts", KEY_LIST, NOTICE(hosts), 0, 0, "host names, comma-separated, at most 1023 bytes"},
    {"port", KEY_NUMBER, NOTICE(port), 1, 65535, "a whole number from 1 to 65535"},
    {"munge_socket", KEY_PATH, NOTICE(munge_socket), 0, 0, "an absolute path of at most 107 bytes"},
    {"log", KEY_PATH, NOTICE(log), 0, 0, "an absolute path of at most 1023 bytes"},
};

static const struct notice_config notice_defaults = {.port = CONFIG_NOTICE_PORT};
static const struct table notice_table = {"notice", notice_keys, COUNT(notice_keys),
					  &notice_defaults, sizeof(notice_defaults)};

static const struct key preflight_keys[] = {
    {"above", KEY_NUMBER, PREFLIGHT(above), 0, 1000000, "a whole number from 0 to 1000000"},
    {"time", KEY_TIME, PREFLIGHT(time), 1, 86400, "a time such as \"10:00\", from 1 s to one day"},
    {"wait", KEY_TIME, PREFLIGHT(wait), 1, 31536000, "a time such as \"1:00:00\", at least 1 s"},
    {"partition", KEY_LIST, PREFLIGHT(partition), 0, 0,
     "partitions, comma-separated, at most 1023 bytes"},
};

static const struct preflight_config preflight_defaults = {.time = 600, .wait = 3600};
static const struct table preflight_table = {"preflight", preflight_keys, COUNT(preflight_keys),
					     &preflight_defaults, sizeof(preflight_defaults)};

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
