/* SPDX-License-Identifier: Apache-2.0 */
/* A job's GPUs as planned, beside those that it can really open. No Slurm in here. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum device_state { DEVICE_NONE, DEVICE_OPEN, DEVICE_DENIED };

enum devices_verdict {
	DEVICES_RIGHT,
	DEVICES_MISSING, /* a GPU of the berth does not open */
	DEVICES_FOREIGN, /* a GPU opens that is not of the berth */
};

/*
 * May this process open /dev/nvidiaMINOR? The kernel asks the device cgroup for access() as it does
 * for open(), but wakes no GPU by it.
 */
enum device_state device_probe(unsigned int minor);
/*
 * `whole`: the process has all GPUs of the job; a step may have been given some of them. *minor is
 * the device that the verdict is about.
 */
enum devices_verdict devices_check(const uint8_t *minors, size_t count, bool whole,
				   enum device_state (*probe)(unsigned int minor),
				   unsigned int *minor);
