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

#include "cli_options.h"

/* In the environment of the second sbatch: seconds, and the tier that the site wants there. */
#define PREFLIGHT_SUBMIT "BERTH_PREFLIGHT_SUBMIT"
#define PREFLIGHT_TIER "BERTH_PREFLIGHT_TIER"
/* Where the second sbatch writes the id of what it has submitted. */
#define PREFLIGHT_ID_FD 3
/* Between the plugins of one command: its user gave --preflight, with this value. */
#define PREFLIGHT_ASKED "BERTH_PREFLIGHT_ASKED"
/* From cli_filter to SPANK, and from there into the job: its pre-flight's id, or that it is one. */
#define PREFLIGHT_JOB "BERTH_PREFLIGHT_JOB"
#define PREFLIGHT_SECONDS "BERTH_PREFLIGHT_SECONDS"
/* What the script and all that it starts see. */
#define PREFLIGHT_HERE "BERTH_PREFLIGHT"

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
