/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs, contexts, and what happens to a process that forks. */
#include "driver.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct gpu gpus[GPUS_MAX];
int gpu_count;
pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool ready, forked;
static _Thread_local CUcontext current[16];
static _Thread_local int depth;

uint64_t driver_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

void driver_sleep_until(uint64_t ns)
{
	struct timespec until = {(time_t)(ns / 1000000000ULL), (long)(ns % 1000000000ULL)};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL))
		;
}

void driver_log(const char *format, ...)
{
	const char *path = getenv("BERTH_FAKE_CUDA_LOG");
	FILE *file = path ? fopen(path, "a") : NULL;
	va_list values;

	if (!file)
		return;
	va_start(values, format);
	vfprintf(file, format, values);
	va_end(values);
	fputc('\n', file);
	fclose(file);
}

/* A child cannot use what its parent has set up, as with the real driver. */
static void in_child(void)
{
	forked = ready;
	device_forget();
	pthread_mutex_init(&driver_lock, NULL);
}

static void lock(void)
{
	pthread_mutex_lock(&driver_lock);
}

static void unlock(void)
{
	pthread_mutex_unlock(&driver_lock);
}

__attribute__((constructor)) static void at_load(void)
{
	pthread_atfork(lock, unlock, in_child);
}

static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *value = getenv(name);

	return value && *value ? strtoull(value, NULL, 10) : otherwise;
}

/* What this node's driver answers to everybody: the file is the node's, the variable one program's.
 */
static CUresult init_error(void)
{
	uint64_t error = number("BERTH_FAKE_CUDA_INIT", 0);
	FILE *file = error ? NULL : fopen("/etc/berth-fake/cuda-init", "r");
	unsigned int read = 0;

	if (file) {
		if (fscanf(file, "%u", &read) == 1)
			error = read;
		fclose(file);
	}
	return (CUresult)error;
}

/* The version of CUDA that this driver is for: beyond every runtime that is tried. */
EXPORT CUresult cuDriverGetVersion(int *version)
{
	*version = 14000;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuInit(u32 flags)
{
	CUresult error = init_error();

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (error)
		return error;
	if (forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&driver_lock);
	if (!ready) {
		gpu_count = (int)number("BERTH_FAKE_CUDA_GPUS", 1);
		for (int i = 0; i < gpu_count && i < GPUS_MAX; i++) {
			memset(&gpus[i].uuid, 0xf0 + i, sizeof(gpus[i].uuid));
			gpus[i].memory = number("BERTH_FAKE_CUDA_MEMORY", 1 << 30);
		}
		device_start();
		ready = true;
	}
	pthread_mutex_unlock(&driver_lock);
	return CUDA_SUCCESS;
}

CUresult driver_ready(void)
{
	return ready && !forked ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult driver_context(CUcontext *context)
{
	CUresult result = driver_ready();

	if (result)
		return result;
	*context = current[depth];
	if (!*context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!(*context)->fault && (*context)->faults != device_faults((*context)->device))
		(*context)->fault = CUDA_ERROR_LAUNCH_FAILED;
	return (*context)->fault;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
	*count = gpu_count;
	return driver_ready();
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	*device = ordinal;
	return ordinal < gpu_count ? driver_ready() : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	if (device < 0 || device >= gpu_count)
		return CUDA_ERROR_INVALID_DEVICE;
	*uuid = gpus[device].uuid;
	return CUDA_SUCCESS;
}

static CUcontext make_context(CUdevice device, bool primary)
{
	CUcontext context = calloc(1, sizeof(*context));

	context->device = device;
	context->primary = primary;
	context->faults = device_faults(device);
	device_tell(device, false);
	context->streams = calloc(1, sizeof(*context->streams));
	context->streams->context = context;
	return context;
}

CUcontext driver_new_context(int device)
{
	return make_context(device, false);
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	if (driver_ready() || device >= gpu_count)
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&driver_lock);
	if (!gpus[device].primary)
		gpus[device].primary = make_context(device, true);
	gpus[device].retained++;
	*context = gpus[device].primary;
	pthread_mutex_unlock(&driver_lock);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, u32 *flags, int *active)
{
	*flags = 0;
	*active = gpus[device].primary != NULL;
	return driver_ready();
}

static uint64_t work_left(CUcontext context)
{
	uint64_t now = driver_now(), last = now;

	for (CUstream stream = context->streams; stream; stream = stream->next)
		if (stream->busy_until > last)
			last = stream->busy_until;
	return last - now;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	if (driver_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&driver_lock);
	if (gpus[device].primary) {
		driver_log("reset %d with %llu ns of work left", device,
			   (unsigned long long)work_left(gpus[device].primary));
		memory_forget_context(gpus[device].primary);
	}
	gpus[device].primary = NULL;
	gpus[device].retained = 0;
	device_tell(device, true);
	pthread_mutex_unlock(&driver_lock);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	if (gpus[device].retained > 1) {
		gpus[device].retained--;
		return CUDA_SUCCESS;
	}
	return cuDevicePrimaryCtxReset_v2(device);
}

CUresult cuCtxCreate_v2(CUcontext *context, u32 flags, CUdevice device)
{
	(void)flags;
	if (driver_ready() || device >= gpu_count)
		return CUDA_ERROR_INVALID_DEVICE;
	*context = make_context(device, false);
	current[depth] = *context;
	return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, u32 flags, CUdevice device)
{
	(void)affinity;
	(void)count;
	return cuCtxCreate_v2(context, flags, device);
}

CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, u32 flags, CUdevice device)
{
	(void)parameters;
	return cuCtxCreate_v2(context, flags, device);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
	driver_log("destroy %d with %llu ns of work left", context->device,
		   (unsigned long long)work_left(context));
	pthread_mutex_lock(&driver_lock);
	memory_forget_context(context);
	pthread_mutex_unlock(&driver_lock);
	if (current[depth] == context)
		current[depth] = NULL;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
	current[depth] = context;
	return driver_ready();
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
	*context = current[depth];
	return driver_ready();
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	if (depth == 15)
		return CUDA_ERROR_INVALID_VALUE;
	current[++depth] = context;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	*context = current[depth--];
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
	CUcontext context;
	CUresult result = driver_context(&context);

	if (!result)
		*device = context->device;
	return result;
}

EXPORT CUresult cuCtxSynchronize(void)
{
	CUcontext context;
	CUresult result = driver_context(&context);

	if (!result)
		driver_sleep_until(driver_now() + work_left(context));
	return result;
}

/* For tests alone: how long the GPU has worked. */
EXPORT uint64_t fakeCudaBusyNs(int device)
{
	return gpus[device].busy_ns;
}

EXPORT uint64_t fakeCudaUsed(int device)
{
	return gpus[device].used;
}
