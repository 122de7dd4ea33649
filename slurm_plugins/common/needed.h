/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Has the Slurm that loads a plugin all that the plugin calls? A release that Berth was not tested
 * with may lack a function. slurmctld ends where a plugin fails to load or to begin, so a plugin
 * that misses one says so, and does nothing.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* A weak symbol of Slurm; its address is NULL where this Slurm has none of that name. */
struct needed {
	const char *name;
	const void *address;
};

#define NEEDED(symbol)                                                                             \
	{                                                                                          \
#symbol, (const void *)&(symbol)                                                   \
	}

/* Is each there? Else the log names the first that is not. */
bool slurm_has(const struct needed *needed, size_t count);
