/* SPDX-License-Identifier: Apache-2.0 */
/* The gate: AntMan's duty cycle for programs without hooks. */
#pragma once

#include "process.h"

/* Waits until a launch into the stream may start; `stream_known` false: there is none to drain. */
void gate_wait(CUstream stream, bool stream_known);
void gate_forget(void);

static inline void gate_pass(CUstream stream)
{
	process_open();
	atomic_fetch_add_explicit(&process.own->launches, 1, memory_order_relaxed);
	if (likely(words_all_open(&process.words) &&
		   !atomic_load_explicit(&process.leaving, memory_order_relaxed)))
		return;
	gate_wait(stream, true);
}
