/* SPDX-License-Identifier: Apache-2.0 */
/* The SPANK plugin where the user sits: sbatch, srun, salloc. */
#ifndef BERTH_SPANK_CLIENT_H
#define BERTH_SPANK_CLIENT_H

#include <slurm/spank.h>

/* Register the flags; `checked`: values are checked here, since a user is there to read. */
int spank_client_register(spank_t spank, int checked);
/* srun, before it reads its environment. */
void spank_client_prepare_srun(void);

#endif
