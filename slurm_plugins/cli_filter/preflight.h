/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pre-flight: a job's own script first runs on one GPU, as a job of its own on which the real
 * one depends. All of it is the user's doing, in sbatch, with the user's rights.
 *
 * sbatch starts itself once more with the same words and PREFLIGHT_SUBMIT set. That second sbatch
 * makes the request smaller (preflight_shrink.c), submits it and tells the id; the first one then
 * lets its own job depend on it (preflight.c). On the node SPANK starts the script under the
 * runner.
 */
#ifndef BERTH_PREFLIGHT_H
#define BERTH_PREFLIGHT_H

#include <stdint.h>

#include "cli_filter/cli_options.h"
#include "common/preflight_names.h"

/* Before sbatch reads its script, which may come by standard input. */
void preflight_keep_script(void);
/* Everything that an sbatch has to do; not SLURM_SUCCESS: it ends. */
int preflight_sbatch(slurm_opt_t *opt, int offset);
/* A command other than sbatch. */
void preflight_other_command(void);
/* A step inside of a pre-flight asks for what there is: one task on one node. */
int preflight_step(slurm_opt_t *opt);
/* Whatever was submitted has this id. */
void preflight_submitted(uint32_t job_id);

/* preflight_shrink.c: the request of the second sbatch becomes that of a pre-flight. */
int preflight_shrink(slurm_opt_t *opt, uint64_t seconds);
/* GPUs in all; 0: Slurm alone can tell. */
uint64_t preflight_gpus(slurm_opt_t *opt);

#endif
