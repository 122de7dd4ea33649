/* SPDX-License-Identifier: Apache-2.0 */
/* The list of pinned jobs that berthd keeps; see formats.md, section 1.4. No Slurm in here. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* It has a place. */
#define LISTED_PINNED 1u
/* A guest without a seat: only its begin time holds it. */
#define LISTED_PARKED 2u
/* It is in partitions alone that Berth does not touch. */
#define LISTED_ELSEWHERE 4u
/* There it asks for GPUs, in a way that was not checked. */
#define LISTED_UNCHECKED 8u
/* It runs beside others on a GPU: its node knows of that from its Extra. */
#define LISTED_SHARES 16u
/* Its licences count its GPUs by model. */
#define LISTED_COUNTED 32u
/* It waits for a part of a GPU, or for a seat: both mean something in Berth's partitions alone. */
#define LISTED_PART 64u
/* Another partition, or another QOS, may not allow its tier. Job 0: that of any job. */
#define LISTED_BY_PARTITION 128u
#define LISTED_BY_QOS 256u
/* It asks for no GPUs, and where it is it may not have any of its own. */
#define LISTED_NO_GPUS 512u
/* What says nothing of a place. */
#define LISTED_RULES (LISTED_PART | LISTED_BY_PARTITION | LISTED_BY_QOS | LISTED_NO_GPUS)
/* It is a guest, waiting or running. */
#define LISTED_GUEST 1024u

/*
 * What the file says of this job; 0 where it does not list it. Whatever is wrong with the file says
 * 0: without a list no change of a job may be refused.
 */
uint32_t pinned_kinds(const char *path, uint32_t job_id);
/*
 * The id of the record that Slurm calls "18", "18_3", "18+1", "JobId=18_*" or "JobId=18_3(21)";
 * there it is 21. 0: none.
 */
uint32_t pinned_record_id(const char *name);
/* The array of "18_3" or "JobId=18_3(21)", 18; 0: it is of none. */
uint32_t pinned_array_id(const char *name);
