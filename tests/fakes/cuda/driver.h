/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver's own things; the functions' prototypes are those of the driver. */
#ifndef BERTH_FAKE_DRIVER_H
#define BERTH_FAKE_DRIVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "driver/cuda_abi.h"

#define GPUS_MAX 8
#define CUDA_ERROR_ILLEGAL_ADDRESS ((CUresult)700)
#define CUDA_ERROR_NOT_SUPPORTED ((CUresult)801)
#define CUDA_ERROR_LAUNCH_FAILED ((CUresult)719)

struct gpu {
	CUuuid uuid;
	uint64_t memory, used,
	    graphs;		   /* this process's: limit, what it holds, and graphs of that */
	uint64_t managed;	   /* what it has of managed memory, beside that */
	uint64_t whole;		   /* what the GPU has for all processes */
	uint64_t free_at, busy_ns; /* one engine: kernels of all streams run one after the other */
	CUcontext primary;
	int retained;
};

struct CUctx_st {
	int device;
	bool primary;
	CUresult fault;
	int sms;	 /* of a green context; 0: all that the process has */
	uint64_t faults; /* that the GPU had seen when the context was made */
	struct CUstream_st *streams;
};

/* A kernel is how long it takes. */
struct CUfunc_st {
	uint64_t ns;
	bool writes; /* to the address that is its first parameter */
};

struct CUstream_st {
	CUcontext context;
	uint64_t busy_until;
	bool recording, spoiled;
	uint64_t recorded_ns, recorded_bytes;
	struct CUstream_st *next;
};

/* A graph is its instance here. Its memory is taken by the first launch. */
struct CUgraphExec_st {
	uint64_t ns, bytes;
	bool launched;
};

struct CUevent_st {
	uint64_t done_at;
	bool timing;
};

extern struct gpu gpus[GPUS_MAX];
extern int gpu_count;
extern pthread_mutex_t driver_lock;

uint64_t driver_now(void);
void driver_sleep_until(uint64_t ns);
/* What the outside may know: a line in the file BERTH_FAKE_CUDA_LOG. */
void driver_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* CUDA_SUCCESS, or why the calling thread can do nothing. */
CUresult driver_ready(void);
CUresult driver_context(CUcontext *context);
/* Queues so much work. */
CUresult driver_run(CUstream stream, uint64_t ns);
/* Looks what MPS and other processes leave of the GPUs; driver_lock is held. */
void device_start(void);
/* A fault of one client of MPS is every client's. */
void device_fault(CUcontext context);
uint64_t device_faults(int device);
/* Takes bytes of the GPU that all processes share, and gives them back; driver_lock is held. A
 * process that dies, in whatever way, gives all of its bytes back. */
bool device_take(int device, uint64_t bytes);
void device_give(int device, uint64_t bytes);
/* Managed memory, more or less of it. It gives way to the rest, and no limit counts it. */
void device_manage(int device, int64_t bytes);
/* Bytes that the process could still take. */
uint64_t device_free(int device);
/* In a child after fork: the parent's bytes are the parent's. */
void device_forget(void);
/* Tells the simulated NVML, if the program knows one, what this process has of the GPU. */
void device_tell(int device, bool gone);
CUcontext driver_new_context(int device);
/* Takes the GPU for so many nanoseconds, more where MPS gives a part of it alone; returns when that
 * begins. */
uint64_t device_begin(CUcontext context, uint64_t now, uint64_t *ns);
/* The context's own stream stands for NULL and for the two special ones. */
CUstream driver_stream(CUcontext context, CUstream stream);
void memory_forget_context(CUcontext context);
/* Takes a graph's memory for good; false: the GPU has not so much. */
bool memory_for_graph(int device, uint64_t bytes);
/* Notes memory that a recorded graph will take; false: the stream is not being recorded. */
bool stream_notes(CUstream stream, uint64_t bytes, CUresult *result);

#endif
