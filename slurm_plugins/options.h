/* SPDX-License-Identifier: Apache-2.0 */
/* The flags: their names, their help, and which values are right. No Slurm in here. */
#ifndef BERTH_OPTIONS_H
#define BERTH_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

/* How Slurm names a flag of ours in the environments that it hands around, without the flag. */
#define OPTION_ENV_PREFIX "_SLURM_SPANK_OPTION_berth_"

enum option_value { VALUE_REQUIRED, VALUE_OPTIONAL };

struct berth_option {
	const char *name;     /* without the dashes */
	const char *argument; /* as shown by --help */
	const char *usage;
	const char *right; /* what a right value is, for the sentence about a wrong one */
	enum option_value takes;
	bool acted_on; /* false: accepted and kept, and the user is told so */
	bool (*check)(const char *value);
};

extern const struct berth_option berth_options[];
extern const size_t berth_option_count;

/* `value` NULL or "": the flag was given without one. */
bool option_value_ok(const struct berth_option *option, const char *value);
/*
 * Which flag does this NAME=VALUE entry of an environment carry? `prefix` may precede Slurm's own
 * ("SLURM_SPANK_"). Returns NULL when it carries none; else *value points to the value, which is
 * "" for a flag without one (Slurm writes "(null)" there).
 */
const struct berth_option *option_in_env(const char *entry, const char *prefix, const char **value);

#endif
