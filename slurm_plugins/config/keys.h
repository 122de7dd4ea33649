/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of berth.conf that C reads, for config.c alone.
 * Written by `make keys` from packaging/keys.toml: change that file. */
/* clang-format off */

static const struct key hook_keys[] = {
	{"socket", KEY_PATH, MEMBER(hook, socket), 0, 0, NULL, "an absolute path of at most 107 bytes"},
	{"deadline_ms", KEY_NUMBER, MEMBER(hook, deadline_ms), 1, 1000, NULL, "a whole number from 1 to 1000"},
	{"breaker_seconds", KEY_NUMBER, MEMBER(hook, breaker_seconds), 1, 3600, NULL, "a whole number from 1 to 3600"},
	{"fail", KEY_WORD, MEMBER(hook, fail_closed), 0, 0, "open|closed", "\"open\" or \"closed\""},
	{"skip_partitions", KEY_TEXT, MEMBER(hook, skip_partitions), 0, 0, NULL, "partitions, comma-separated, at most 1023 bytes"},
	{"skipped_shards", KEY_WORD, MEMBER(hook, skipped_shards), 0, 0, "refuse|site", "\"refuse\" or \"site\""},
	{"def_cpu_per_gpu", KEY_NUMBER, MEMBER(hook, def_cpu_per_gpu), 0, 1024, NULL, "a whole number from 0 to 1024"},
	{"layout", KEY_WORD, MEMBER(hook, layout), 0, 0, "exact|plain", "\"exact\" or \"plain\""},
	{"message", KEY_WORD, MEMBER(hook, message), 0, 0, "always|flags|never", "\"always\", \"flags\" or \"never\""},
	{"hook_log", KEY_PATH, MEMBER(hook, hook_log), 0, 0, NULL, "an absolute path of at most 1023 bytes"},
	{"pinned_file", KEY_PATH, MEMBER(hook, pinned_file), 0, 0, NULL, "an absolute path of at most 1023 bytes"},
};

static const struct hook_config hook_defaults = {
	.socket = "/run/berth/berthd.sock",
	.deadline_ms = 50,
	.breaker_seconds = 5,
	.message = MESSAGE_FLAGS,
	.pinned_file = "/run/berth/pinned",
};

static const struct table hook_table = {"hook", hook_keys, sizeof(hook_keys) / sizeof(hook_keys[0]), &hook_defaults, sizeof(hook_defaults)};

static const struct key notice_keys[] = {
	{"hosts", KEY_TEXT, MEMBER(notice, hosts), 0, 0, NULL, "host names, comma-separated, at most 1023 bytes"},
	{"port", KEY_NUMBER, MEMBER(notice, port), 1, 65535, NULL, "a whole number from 1 to 65535"},
	{"munge_socket", KEY_PATH, MEMBER(notice, munge_socket), 0, 0, NULL, "an absolute path of at most 107 bytes"},
	{"log", KEY_PATH, MEMBER(notice, log), 0, 0, NULL, "an absolute path of at most 1023 bytes"},
};

static const struct notice_config notice_defaults = {
	.port = 6826,
};

static const struct table notice_table = {"notice", notice_keys, sizeof(notice_keys) / sizeof(notice_keys[0]), &notice_defaults, sizeof(notice_defaults)};

static const struct key preflight_keys[] = {
	{"above", KEY_NUMBER, MEMBER(preflight, above), 0, 1000000, NULL, "a whole number from 0 to 1000000"},
	{"time", KEY_TIME, MEMBER(preflight, time), 1, 86400, NULL, "a time such as \"10:00\", from 1 s to one day"},
	{"wait", KEY_TIME, MEMBER(preflight, wait), 1, 31536000, NULL, "a time such as \"1:00:00\", at least 1 s"},
	{"partition", KEY_TEXT, MEMBER(preflight, partition), 0, 0, NULL, "partitions, comma-separated, at most 1023 bytes"},
};

static const struct preflight_config preflight_defaults = {
	.time = 600,
	.wait = 3600,
};

static const struct table preflight_table = {"preflight", preflight_keys, sizeof(preflight_keys) / sizeof(preflight_keys[0]), &preflight_defaults, sizeof(preflight_defaults)};
