/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who has submitted something of late that berthd's list cannot name yet: it is a second or so
 * behind. Forgotten by itself. No Slurm in here.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* A guest without a seat. */
#define RECENT_GUEST 1u
/* GPUs in a partition that Berth does not touch. */
#define RECENT_UNCHECKED 2u
/* GPUs that licences count by model. */
#define RECENT_COUNTED 4u
/* A GPU that the job has not alone. */
#define RECENT_SHARED 8u
/* Any job of Berth's partitions. */
#define RECENT_ANY 16u

/* How long a note lasts: many times as long as berthd takes from one list to the next. */
#define RECENT_SECONDS 30

void recent_note(uint32_t uid, uint32_t what, uint64_t now_us);
bool recent_has(uint32_t uid, uint32_t what, uint64_t now_us);
