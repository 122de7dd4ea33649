/* SPDX-License-Identifier: Apache-2.0 */
/* The SPANK plugin where the user sits: sbatch, srun, salloc. */
#pragma once

#include "spank/spank_api.h"

/* Register the flags; `checked`: values are checked here, since a user is there to read. */
int spank_client_register(spank_t spank, int checked);
/* sbatch and salloc inside a job: what that job asked for is not asked for again. */
void spank_client_forget_outer_job(void);
/* srun, before it reads its environment. */
void spank_client_prepare_srun(void);

/* After the options of one part of a job, and before those of the next. */
void spank_client_part_the_flags(spank_t spank);
/* What cli_filter found out about a pre-flight becomes part of the job. */
void spank_client_hand_on_preflight(spank_t spank);
