/* SPDX-License-Identifier: Apache-2.0 */
/* What a program asks of a GPU before it works, copies, and what MPS does to a client. */
#include "driver.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SM_COUNT 132
/* CUdevice_attribute */
enum { ATTRIBUTE_SM_COUNT = 16, ATTRIBUTE_MAJOR = 75, ATTRIBUTE_MINOR = 76 };
#define COPY_BYTES_PER_NS 25

#define PROCESSES_MAX 64
/* Bytes of the file that are locked, and by which a process tells that it lives. */
enum { MEMORY_LOCK, FIRST_LIFE };

/* What the processes that name one file share. */
static struct shared {
	_Atomic uint64_t free_at[GPUS_MAX], faults[GPUS_MAX];
	uint64_t used[PROCESSES_MAX][GPUS_MAX], managed[PROCESSES_MAX][GPUS_MAX];
} * shared;
static int shared_file = -1, own_place = -1;
static bool client;
static double part = 100;

/* A client has what its environment says, as with the real driver, and the server's limits are not
 * asked for. */
static void as_client(void)
{
	const char *percent = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
	const char *limits = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
	uint64_t bytes[GPUS_MAX] = {0};

	client = getenv("CUDA_MPS_PIPE_DIRECTORY") != NULL;
	if (!client)
		return;
	if (percent && atof(percent) > 0 && atof(percent) <= 100)
		part = atof(percent);
	while (limits && *limits) {
		char *end;
		unsigned long ordinal = strtoul(limits, &end, 10);
		uint64_t size;

		/* One GPU too many, and there is no limit at all. */
		if (*end != '=' || ordinal >= (unsigned long)gpu_count || ordinal >= GPUS_MAX)
			return;
		size = strtoull(end + 1, &end, 10);
		bytes[ordinal] = size << (*end == 'G' ? 30 : 20);
		limits = strchr(end, ',');
		limits = limits ? limits + 1 : NULL;
	}
	for (int i = 0; i < gpu_count && i < GPUS_MAX; i++)
		if (bytes[i] && bytes[i] < gpus[i].memory)
			gpus[i].memory = bytes[i];
}

/* Such a lock goes with the last descriptor of its opening, however the process ends. */
static int lock_byte(int command, int byte, short kind)
{
	struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};

	if (fcntl(shared_file, command, &lock))
		return -1;
	return lock.l_type == F_UNLCK;
}

static void take_place(void)
{
	for (int place = 0; place < PROCESSES_MAX && own_place < 0; place++)
		if (lock_byte(F_OFD_SETLK, FIRST_LIFE + place, F_WRLCK) >= 0) {
			memset(shared->used[place], 0, sizeof(shared->used[place]));
			memset(shared->managed[place], 0, sizeof(shared->managed[place]));
			own_place = place;
		}
}

void device_start(void)
{
	const char *path = getenv("BERTH_FAKE_CUDA_SHARED");
	void *found;

	for (int i = 0; i < gpu_count && i < GPUS_MAX; i++)
		gpus[i].whole = gpus[i].memory;
	as_client();
	shared_file = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
	if (shared_file < 0 || ftruncate(shared_file, sizeof(*shared)))
		return;
	found = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, shared_file, 0);
	shared = found == MAP_FAILED ? NULL : found;
	if (shared)
		take_place();
}

void device_forget(void)
{
	if (shared_file >= 0)
		close(shared_file);
	shared_file = own_place = -1;
}

/* What all living processes hold; the memory lock is held. */
static uint64_t held_by_all(uint64_t (*held)[GPUS_MAX], int device)
{
	uint64_t sum = 0;

	for (int place = 0; place < PROCESSES_MAX; place++)
		if (held[place][device] &&
		    (place == own_place || !lock_byte(F_OFD_GETLK, FIRST_LIFE + place, F_WRLCK)))
			sum += held[place][device];
	return sum;
}

uint64_t device_free(int device)
{
	struct gpu *gpu = &gpus[device];
	uint64_t own = gpu->memory - gpu->used, all, managed;

	if (own_place < 0)
		return own;
	lock_byte(F_OFD_SETLKW, MEMORY_LOCK, F_WRLCK);
	all = held_by_all(shared->used, device);
	managed = held_by_all(shared->managed, device);
	lock_byte(F_OFD_SETLK, MEMORY_LOCK, F_UNLCK);
	all = all + managed < gpu->whole ? gpu->whole - all - managed : 0;
	return own < all ? own : all;
}

bool device_take(int device, uint64_t bytes)
{
	struct gpu *gpu = &gpus[device];
	bool fits = gpu->used + bytes <= gpu->memory;

	if (fits && own_place >= 0) {
		lock_byte(F_OFD_SETLKW, MEMORY_LOCK, F_WRLCK);
		fits = held_by_all(shared->used, device) + bytes <= gpu->whole;
		if (fits)
			shared->used[own_place][device] += bytes;
		lock_byte(F_OFD_SETLK, MEMORY_LOCK, F_UNLCK);
	}
	if (fits) {
		gpu->used += bytes;
		device_tell(device, false);
	}
	return fits;
}

void device_give(int device, uint64_t bytes)
{
	gpus[device].used -= bytes;
	if (own_place >= 0)
		shared->used[own_place][device] -= bytes;
	device_tell(device, false);
}

void device_manage(int device, int64_t bytes)
{
	gpus[device].managed += (uint64_t)bytes;
	if (own_place >= 0)
		shared->managed[own_place][device] = gpus[device].managed;
	device_tell(device, false);
}

uint64_t device_faults(int device)
{
	return client && shared ? shared->faults[device] : 0;
}

void device_fault(CUcontext context)
{
	context->fault = CUDA_ERROR_ILLEGAL_ADDRESS;
	if (client && shared)
		atomic_fetch_add(&shared->faults[context->device], 1);
}

void device_tell(int device, bool gone)
{
	const char *machine = getenv("BERTH_FAKE_NVML");
	char path[4096];
	FILE *live;

	if (!machine || (size_t)snprintf(path, sizeof(path), "%s.live", machine) >= sizeof(path))
		return;
	live = fopen(path, "a");
	if (!live)
		return;
	if (gone)
		fprintf(live, "process %d %d gone\n", device, (int)getpid());
	else
		fprintf(live, "process %d %d type=%s memory=%llu real=1\n", device, (int)getpid(),
			client ? "mps" : "compute",
			(unsigned long long)((gpus[device].used + gpus[device].managed) >> 20));
	fclose(live);
}

uint64_t device_begin(CUcontext context, uint64_t now, uint64_t *ns)
{
	struct gpu *gpu = &gpus[context->device];
	uint64_t before, starts;

	if (context->sms)
		*ns = *ns * SM_COUNT / (uint64_t)context->sms;
	else
		*ns = (uint64_t)((double)*ns * 100 / part);
	/* Clients of MPS with a part of the GPU work at once, all others one after the other. */
	if (shared && !(client && (part < 100 || context->sms))) {
		before = shared->free_at[context->device];
		do
			starts = before > now ? before : now;
		while (!atomic_compare_exchange_weak(&shared->free_at[context->device], &before,
						     starts + *ns));
		gpu->free_at = starts + *ns;
		return starts;
	}
	starts = gpu->free_at > now ? gpu->free_at : now;
	gpu->free_at = starts + *ns;
	return starts;
}

/* Green contexts: the resource is the structure of cuda.h, its words and the context are the
 * simulated context. */
struct resource {
	int type;
	unsigned char internal[92];
	u32 sm_count;
	unsigned char rest[44];
};

EXPORT CUresult cuDeviceGetDevResource(CUdevice device, struct resource *found, int type)
{
	if (device < 0 || device >= gpu_count || type != 1)
		return CUDA_ERROR_INVALID_VALUE;
	memset(found, 0, sizeof(*found));
	found->type = type;
	found->sm_count = (u32)(SM_COUNT * part / 100) / 2 * 2;
	return driver_ready();
}

EXPORT CUresult cuDevSmResourceSplitByCount(struct resource *groups, u32 *count,
					    const struct resource *from, struct resource *rest,
					    u32 flags, u32 least)
{
	u32 each = (least + 7) / 8 * 8;

	(void)flags;
	if (!each || each > from->sm_count)
		return CUDA_ERROR_INVALID_VALUE;
	if (*count > from->sm_count / each)
		*count = from->sm_count / each;
	for (u32 i = 0; groups && i < *count; i++) {
		groups[i] = *from;
		groups[i].sm_count = each;
	}
	if (rest) {
		*rest = *from;
		rest->sm_count = from->sm_count - *count * each;
	}
	return driver_ready();
}

EXPORT CUresult cuDevResourceGenerateDesc(void **words, const struct resource *groups, u32 count)
{
	CUcontext made;

	if (driver_ready() || !count)
		return CUDA_ERROR_INVALID_VALUE;
	made = driver_new_context(0);
	for (u32 i = 0; i < count; i++)
		made->sms += (int)groups[i].sm_count;
	*words = made;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGreenCtxCreate(void **green, void *words, CUdevice device, u32 flags)
{
	(void)flags;
	((CUcontext)words)->device = device;
	*green = words;
	return driver_ready();
}

EXPORT CUresult cuCtxFromGreenCtx(CUcontext *context, void *green)
{
	*context = green;
	return driver_ready();
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	if (device < 0 || device >= gpu_count)
		return CUDA_ERROR_INVALID_DEVICE;
	if (attribute == ATTRIBUTE_SM_COUNT)
		*value = (int)(SM_COUNT * part / 100) / 2 * 2;
	else if (attribute == ATTRIBUTE_MAJOR)
		*value = 9;
	else if (attribute == ATTRIBUTE_MINOR)
		*value = 0;
	else
		return CUDA_ERROR_INVALID_VALUE;
	return driver_ready();
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	if (device < 0 || device >= gpu_count)
		return CUDA_ERROR_INVALID_DEVICE;
	*uuid = gpus[device].uuid;
	return driver_ready();
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice other)
{
	*can = device != other;
	return driver_ready();
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext context, u32 flags)
{
	(void)context, (void)flags;
	return driver_ready();
}

EXPORT CUresult cuMemAllocHost_v2(void **pointer, size_t size)
{
	CUcontext context;
	CUresult result = driver_context(&context);

	if (result)
		return result;
	*pointer = malloc(size);
	return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemFreeHost(void *pointer)
{
	free(pointer);
	return driver_ready();
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
	(void)to, (void)from;
	return driver_run(stream, size / COPY_BYTES_PER_NS);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
	(void)to, (void)from;
	return driver_run(stream, size / COPY_BYTES_PER_NS);
}

EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here,
				  size_t size, CUstream stream)
{
	(void)to, (void)there, (void)from, (void)here;
	return driver_run(stream, size / COPY_BYTES_PER_NS);
}
