/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that graphs take: when a node is added, and as the driver reports it after launches. */
#pragma once

#include "process.h"

/* Set once this process has a graph that takes memory. */
extern _Atomic bool graphs_take_memory;

/* Books memory that a graph will take; false: it would not fit. */
bool graphs_reserve(CUdevice device, uint64_t size);
void graphs_release(CUdevice device, uint64_t size);
void graphs_ask_driver(void);
void graphs_forget(void);

/* Whether the stream is being recorded into a graph. */
bool stream_records(CUstream stream);

static inline void graphs_launched(void)
{
	if (!likely(!atomic_load_explicit(&graphs_take_memory, memory_order_relaxed)))
		graphs_ask_driver();
}
