/* SPDX-License-Identifier: Apache-2.0 */
/* One job's record, asked of slurmctld: its number's name and the call differ between releases. */
#pragma once

#include "common/slurm_api.h"

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
#define JOB_ID(job) ((job)->step_id.job_id)
#else
#define JOB_ID(job) ((job)->job_id)
#endif

static inline int load_job(uint32_t job_id, job_info_msg_t **found, uint16_t flags)
{
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
	slurm_step_id_t wanted = SLURM_STEP_ID_INITIALIZER;

	wanted.job_id = job_id;
	return slurm_load_job(found, wanted, flags);
#else
	return slurm_load_job(found, job_id, flags);
#endif
}
