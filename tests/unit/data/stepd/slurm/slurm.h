/* SPDX-License-Identifier: Apache-2.0 */
#include "spank.h"

#define SLURM_SUCCESS 0
#define SLURM_ERROR (-1)

int slurm_kill_job2(const char *job_id, uint16_t signal, uint16_t flags, const char *sibling);
