/* SPDX-License-Identifier: Apache-2.0 */
/* What the plugins inside sbatch, srun and salloc share. */
#pragma once

#include <stdbool.h>

#include "config/config.h"

/*
 * Does Berth leave jobs of this partition alone? A login node without berth.conf says no, which is
 * right wherever no partition is skipped. NULL: unknown, or the default one.
 */
bool client_skips(const char *partition);
/* Are requests there left as they are: has no GPU a type of its own? */
bool client_leaves_requests(const char *partition);
/* Does this site say nothing about what succeeds ([hook] message = "never")? */
bool client_is_silent(void);
/* The table [preflight], as this machine has it. */
void client_preflight_config(struct preflight_config *config);
/* Is this srun about to start a step of an existing job? */
bool inside_allocation(void);
/* Take model names out of what srun reads from its environment. Only ever for a step. */
void client_strip_environment(void);
