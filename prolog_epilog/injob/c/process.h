/* SPDX-License-Identifier: Apache-2.0 */
/* What the library knows of its process: its words, and how it is to leave. */
#pragma once

#include "driver/cuda_abi.h"
#include "word.h"

#define likely(condition) __builtin_expect(!!(condition), 1)
#define DEVICES_MAX WORDS_MAX

enum process_state { PROCESS_NEW, PROCESS_OPENING, PROCESS_OPEN };

struct process {
	_Atomic int state;
	/* SIGTERM has come: no launch starts any more. */
	_Atomic bool leaving;
	struct words words;
	/* The word of a CUDA device; NULL: none is known. */
	struct word *_Atomic by_device[DEVICES_MAX];
	/* Launches are counted here. */
	struct slot *own;
};

extern struct process process;

/* Opens the words, once; later calls cost one load. */
void process_open_slowly(void);

static inline void process_open(void)
{
	if (!likely(atomic_load_explicit(&process.state, memory_order_acquire) == PROCESS_OPEN))
		process_open_slowly();
}

/* Whether the Prolog has set a variable to 1; `known` keeps the answer, 0 before the first one. */
bool variable_set(_Atomic int *known, const char *name);

/* The word of a device, and the device of the calling thread's context. */
struct word *word_of_device(CUdevice device);
CUdevice current_device(void);

/* Lets the GPU finish, gives the contexts back and dies of the signal. */
void leave_on_signals(void);
void leave_forget(void);
void context_made(CUcontext context);
/* The calling thread's context; NULL where it is a primary one. */
CUcontext context_current_made(void);
void context_gone(CUcontext context);
