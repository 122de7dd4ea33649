/* SPDX-License-Identifier: Apache-2.0 */
/* The tables [hook], [notice] and [preflight] of berth.conf. No Slurm in here. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "config/config_table.h"

#define CONFIG_SOCKET_MAX 107 /* what sockaddr_un holds */
#define CONFIG_TEXT_MAX 1023

enum message_mode { MESSAGE_ALWAYS, MESSAGE_FLAGS, MESSAGE_NEVER };
/* How slurm.conf lists GPUs: each with a type of its own, or as the site has them without Berth. */
enum gpu_layout { LAYOUT_EXACT, LAYOUT_PLAIN };

struct hook_config {
	char socket[CONFIG_SOCKET_MAX + 1];
	uint32_t deadline_ms;
	uint32_t breaker_seconds;
	bool fail_closed;
	char skip_partitions[CONFIG_TEXT_MAX + 1];
	bool skipped_shards; /* users may ask for shards there */
	uint32_t def_cpu_per_gpu;
	enum message_mode message;
	enum gpu_layout layout;
	char hook_log[CONFIG_TEXT_MAX + 1];
	char pinned_file[CONFIG_TEXT_MAX + 1];
};

struct notice_config {
	char hosts[CONFIG_TEXT_MAX + 1]; /* empty: no berthd is told */
	uint32_t port;
	char munge_socket[CONFIG_SOCKET_MAX + 1]; /* empty: libmunge's own */
	char log[CONFIG_TEXT_MAX + 1];
};

struct preflight_config {
	uint32_t above; /* jobs of more GPUs have one unasked; 0: none has */
	uint32_t time;	/* seconds, as the wait */
	uint32_t wait;	/* berthd's alone */
	char partition[CONFIG_TEXT_MAX + 1];
};

void config_defaults(struct hook_config *config);
/* Parse a whole file's text. false: *config holds the defaults and `error` one sentence. */
bool config_parse(const char *text, struct hook_config *config, char error[CONFIG_ERROR_MAX]);
/* A missing file is the defaults; false: as above, the sentence names the file. */
bool config_load(const char *path, struct hook_config *config, char error[CONFIG_ERROR_MAX]);
/* The same for the table [notice]. */
bool config_load_notice(const char *path, struct notice_config *config,
			char error[CONFIG_ERROR_MAX]);
bool config_load_preflight(const char *path, struct preflight_config *config,
			   char error[CONFIG_ERROR_MAX]);
/* BERTH_CONF, else berth.conf next to slurm.conf. false: the path is too long. */
bool config_path(const char *slurm_conf, char path[CONFIG_TEXT_MAX + 1]);
/*
 * Is each of these comma-separated partitions one that Berth does not touch? A job that may land in
 * another is Berth's: else a user could leave that rule by adding a skipped one to the list.
 */
bool config_skips(const struct hook_config *config, const char *partitions);
