/* SPDX-License-Identifier: Apache-2.0 */
/* The list of pinned jobs that berthd keeps; see docs/formats.md section 1.4. No Slurm in here. */
#ifndef BERTH_PINNED_H
#define BERTH_PINNED_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Does the file list this job? Whatever is wrong with the file says no: without a list no change
 * of a job may be refused.
 */
bool pinned_lists(const char *path, uint32_t job_id);
/*
 * The id of the record that Slurm calls "18", "18_3", "18+1", "JobId=18_*" or "JobId=18_3(21)";
 * there it is 21. 0: none.
 */
uint32_t pinned_record_id(const char *name);

#endif
