/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pre-flight: a job's own script first runs on one GPU, as a job of its own on which the real
 * one depends. All of it is the user's doing, in sbatch, with the user's rights.
 */
#pragma once

#include <stdint.h>

#include "cli_filter/cli_options.h"

/* Everything that an sbatch has to do; not SLURM_SUCCESS: it ends. */
int preflight_sbatch(slurm_opt_t *opt, int offset);
/* What was submitted has this id. */
void preflight_submitted(uint32_t job_id);
