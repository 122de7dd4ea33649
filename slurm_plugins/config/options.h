/* SPDX-License-Identifier: Apache-2.0 */
/* The flags: their names, their help, and which values are right. No Slurm in here. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How Slurm names a flag of ours in the environments that it hands around, without the flag. */
#define OPTION_ENV_PREFIX "_SLURM_SPANK_OPTION_berth_"
/* What Slurm puts before the name of a variable that SPANK hands to a job. */
#define HANDED_DOWN "SLURM_SPANK_"
/* The flag that makes a job a packed one. */
#define OPTION_SHARE "gpu-share"
/* The flag by which a job owns its GPUs alone, or with a guest, or is a guest. */
#define OPTION_TIER "gpu-tier"
/* The flag by which a job's script runs first on one GPU, and the value by which it never does. */
#define OPTION_PREFLIGHT "preflight"
#define PREFLIGHT_NO "no"
/* Between the plugins of one command: its user gave --preflight, with this value. */
#define PREFLIGHT_ASKED "BERTH_PREFLIGHT_ASKED"
/* From cli_filter to SPANK, and from there into the job: its pre-flight's id. */
#define PREFLIGHT_JOB "BERTH_PREFLIGHT_JOB"
/* The same for a job that is a pre-flight: its seconds, and which failure ends the job itself. */
#define PREFLIGHT_SECONDS "BERTH_PREFLIGHT_SECONDS"
/* What the script of a pre-flight and all that it starts see. */
#define PREFLIGHT_HERE "BERTH_PREFLIGHT"
/* Slurm sets it in the tasks of a job that has a part of a GPU: its shares of this node, added up.
 */
#define SHARDS_HERE "SLURM_SHARDS_ON_NODE"
/* The node's Prolog has it set in the tasks of a guest, which has a GPU, but none in Slurm's books.
 */
#define GUEST_HERE "BERTH_GUEST"
/* job_submit has it set in the script of a job that asks for a seat. */
#define SEAT_ASKED "BERTH_SEAT_ASKED"
/* Between the plugins of one command: its user gave --gpu-share. */
#define SHARE_ASKED "BERTH_SHARE_ASKED"

enum option_value { VALUE_REQUIRED, VALUE_OPTIONAL };

struct berth_option {
	const char *name;     /* without the dashes */
	const char *argument; /* as shown by --help */
	const char *usage;
	const char *right; /* what a right value is, for the sentence about a wrong one */
	enum option_value takes;
	bool (*check)(const char *value);
};

extern const struct berth_option berth_options[];
extern const size_t berth_option_count;

/* M, M:S, H:M:S, D-H, D-H:M, D-H:M:S, as Slurm writes times. */
bool time_seconds(const char *s, uint64_t *seconds);
/* [TIME][,must]; what is not said stays as it is. */
bool preflight_value(const char *value, uint64_t *seconds, bool *must);
/* `value` NULL or "": the flag was given without one. */
bool option_value_ok(const struct berth_option *option, const char *value);
/*
 * Which flag does this NAME=VALUE entry of an environment carry? `prefix` may precede Slurm's own
 * (HANDED_DOWN). Returns NULL when it carries none; else *value points to the value, which is
 * "" for a flag without one (Slurm writes "(null)" there).
 */
const struct berth_option *option_in_env(const char *entry, const char *prefix, const char **value);
