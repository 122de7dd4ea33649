/* SPDX-License-Identifier: Apache-2.0 */
/* An owner's allocation that fails while its guest holds memory is tried again as the guest goes.
 */
#pragma once

#include "process.h"

struct retry {
	struct word *word; /* NULL: it has not waited */
	uint64_t until, lacking;
	bool last;
};

/* Waits a moment; false: no guest holds what is lacking, and the failure stands. */
bool retry_wait(struct retry *retry, CUdevice device, uint64_t size);
/* The allocation has succeeded, or failed for good. */
void retry_end(struct retry *retry);
/* Bytes that the guest on a device would give back to this owner. */
uint64_t retry_room(CUdevice device);

/* The driver's answer to an allocation, at last. */
#define TRY(device, size, call)                                                                    \
	({                                                                                         \
		struct retry retry_ = {0};                                                         \
		CUresult tried_ = (call);                                                          \
		while (tried_ == CUDA_ERROR_OUT_OF_MEMORY && retry_wait(&retry_, device, size))    \
			tried_ = (call);                                                           \
		retry_end(&retry_);                                                                \
		tried_;                                                                            \
	})
