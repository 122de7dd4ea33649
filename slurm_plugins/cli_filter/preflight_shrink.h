/* SPDX-License-Identifier: Apache-2.0 */
/* A request of any size becomes one for one task with one GPU. */
#pragma once

#include <stdint.h>

#include "cli_filter/cli_options.h"

/* GPUs that an sbatch asks for in all; 0: Slurm alone can tell. */
uint64_t preflight_gpus(slurm_opt_t *opt);
/* An sbatch's request becomes that of a pre-flight, in the site's partition for them if it has one.
 */
int preflight_shrink(slurm_opt_t *opt, const char *partition, uint64_t seconds);
/* A step inside of a pre-flight asks for what there is: one task on one node. */
int preflight_step(slurm_opt_t *opt);
