/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: blocks, arrays, and physical memory that is mapped. Nothing is really stored. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define BLOCKS_MAX 65536

enum block_kind { FREE_BLOCK, PLAIN, MANAGED, ARRAY_BLOCK, PHYSICAL, MAPPED };

static struct block {
	enum block_kind kind;
	uint64_t name, size, handle;
	int device, uses;
	CUcontext context;
} blocks[BLOCKS_MAX];
static uint64_t next_name = 0x7f0000000000ULL;
static int last_block;

static struct block *find(enum block_kind kind, uint64_t name)
{
	for (int i = 0; i < last_block; i++)
		if (blocks[i].kind == kind && blocks[i].name == name)
			return &blocks[i];
	return NULL;
}

static bool take_bytes(enum block_kind kind, int device, uint64_t size)
{
	if (kind != MANAGED)
		return device_take(device, size);
	device_manage(device, (int64_t)size);
	return true;
}

static void give_bytes(const struct block *block)
{
	if (block->kind == MANAGED)
		device_manage(block->device, -(int64_t)block->size);
	else
		device_give(block->device, block->size);
}

static CUresult take(enum block_kind kind, int device, CUcontext context, uint64_t size,
		     uint64_t *name)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	int i = 0;

	if (device < 0 || device >= gpu_count)
		return CUDA_ERROR_INVALID_DEVICE;
	if (!size)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&driver_lock);
	while (i < BLOCKS_MAX && blocks[i].kind != FREE_BLOCK)
		i++;
	if (i < BLOCKS_MAX && take_bytes(kind, device, size)) {
		blocks[i] = (struct block){kind, next_name, size, 0, device, 1, context};
		last_block = i >= last_block ? i + 1 : last_block;
		next_name += (size + 4095) / 4096 * 4096;
		*name = blocks[i].name;
		result = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&driver_lock);
	return result;
}

static CUresult take_here(enum block_kind kind, uint64_t size, uint64_t *name)
{
	CUcontext context;
	CUresult result = driver_context(&context);

	return result ? result : take(kind, context->device, context, size, name);
}

static CUresult give(enum block_kind kind, uint64_t name)
{
	struct block *block;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (!name)
		return driver_ready();
	pthread_mutex_lock(&driver_lock);
	block = find(kind, name);
	if (!block && kind == PLAIN)
		block = find(MANAGED, name);
	if (block) {
		give_bytes(block);
		block->kind = FREE_BLOCK;
		result = driver_ready();
	}
	pthread_mutex_unlock(&driver_lock);
	return result;
}

void memory_forget_context(CUcontext context)
{
	for (int i = 0; i < last_block; i++)
		if (blocks[i].kind != FREE_BLOCK && blocks[i].context == context) {
			give_bytes(&blocks[i]);
			blocks[i].kind = FREE_BLOCK;
		}
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
	return take_here(PLAIN, size, (uint64_t *)pointer);
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, u32 flags)
{
	const char *has = getenv("BERTH_FAKE_CUDA_MANAGED");

	if (flags != ATTACH_GLOBAL)
		return CUDA_ERROR_INVALID_VALUE;
	if (has && !strcmp(has, "0"))
		return CUDA_ERROR_NOT_SUPPORTED;
	return take_here(MANAGED, size, (uint64_t *)pointer);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
			    u32 element)
{
	(void)element;
	*pitch = (width + 511) / 512 * 512;
	return take_here(PLAIN, *pitch * height, (uint64_t *)pointer);
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	return give(PLAIN, pointer);
}

bool memory_for_graph(int device, uint64_t bytes)
{
	bool fits;

	pthread_mutex_lock(&driver_lock);
	fits = device_take(device, bytes);
	if (fits)
		gpus[device].graphs += bytes;
	pthread_mutex_unlock(&driver_lock);
	return fits;
}

EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, uint64_t *value)
{
	if (device < 0 || device >= gpu_count || attribute != GRAPH_MEM_RESERVED_CURRENT)
		return CUDA_ERROR_INVALID_VALUE;
	*value = gpus[device].graphs;
	return CUDA_SUCCESS;
}

/* No graph runs in these tests while memory is given back. */
CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	if (device < 0 || device >= gpu_count)
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&driver_lock);
	device_give(device, gpus[device].graphs);
	gpus[device].graphs = 0;
	pthread_mutex_unlock(&driver_lock);
	return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream)
{
	CUresult result;

	*pointer = 0x1000;
	if (stream_notes(stream, size, &result))
		return result;
	return take_here(PLAIN, size, (uint64_t *)pointer);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t size, CUstream stream)
{
	return cuMemAllocAsync(pointer, size, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemPool pool, CUstream stream)
{
	(void)pool;
	return cuMemAllocAsync(pointer, size, stream);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t size, CUmemPool pool,
				      CUstream stream)
{
	(void)pool;
	return cuMemAllocAsync(pointer, size, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
	(void)stream;
	return give(PLAIN, pointer);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
	return cuMemFreeAsync(pointer, stream);
}

CUresult cuMemCreate(CUmemHandle *handle, size_t size, const CUmemProp *prop,
		     unsigned long long flags)
{
	(void)flags;
	if (prop->location.type != LOCATION_DEVICE) {
		*handle = 1;
		return CUDA_SUCCESS;
	}
	return take(PHYSICAL, prop->location.id, NULL, size, (uint64_t *)handle);
}

/* With the lock held: it lives as long as a handle or a mapping does. */
static CUresult less(uint64_t handle)
{
	struct block *block = find(PHYSICAL, handle);

	if (!block)
		return CUDA_ERROR_INVALID_VALUE;
	if (!--block->uses) {
		device_give(block->device, block->size);
		block->kind = FREE_BLOCK;
	}
	return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemHandle handle)
{
	CUresult result;

	pthread_mutex_lock(&driver_lock);
	result = less(handle);
	pthread_mutex_unlock(&driver_lock);
	return result;
}

CUresult cuMemRetainAllocationHandle(CUmemHandle *handle, void *address)
{
	struct block *mapped;

	pthread_mutex_lock(&driver_lock);
	mapped = find(MAPPED, (uint64_t)address);
	if (mapped) {
		*handle = mapped->handle;
		find(PHYSICAL, mapped->handle)->uses++;
	}
	pthread_mutex_unlock(&driver_lock);
	return mapped ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment,
				    CUdeviceptr wish, unsigned long long flags)
{
	(void)alignment, (void)wish, (void)flags;
	pthread_mutex_lock(&driver_lock);
	*pointer = next_name;
	next_name += (size + 4095) / 4096 * 4096;
	pthread_mutex_unlock(&driver_lock);
	return driver_ready();
}

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemHandle handle,
		  unsigned long long flags)
{
	struct block *physical;
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	int i = 0;

	(void)flags;
	pthread_mutex_lock(&driver_lock);
	physical = find(PHYSICAL, handle);
	while (i < BLOCKS_MAX && blocks[i].kind != FREE_BLOCK)
		i++;
	if (physical && offset + size <= physical->size && i < BLOCKS_MAX) {
		physical->uses++;
		blocks[i] =
		    (struct block){MAPPED, pointer, size, handle, physical->device, 1, NULL};
		last_block = i >= last_block ? i + 1 : last_block;
		result = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&driver_lock);
	return result;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	pthread_mutex_lock(&driver_lock);
	for (int i = 0; i < last_block; i++)
		if (blocks[i].kind == MAPPED && blocks[i].name >= pointer &&
		    blocks[i].name < pointer + size) {
			result = less(blocks[i].handle);
			blocks[i].kind = FREE_BLOCK;
		}
	pthread_mutex_unlock(&driver_lock);
	return result;
}

static CUresult take_array(void **array, size_t width, size_t height, size_t depth, u32 channels)
{
	uint64_t name = 0, size = width * (height ? height : 1) * (depth ? depth : 1) * channels;
	CUresult result = take_here(ARRAY_BLOCK, size, &name);

	*array = (void *)name;
	return result;
}

CUresult cuArrayCreate_v2(CUarray *array, const CUarrayDescriptor *descriptor)
{
	return take_array((void **)array, descriptor->width, descriptor->height, 0,
			  descriptor->channels);
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUarray3DDescriptor *descriptor)
{
	return take_array((void **)array, descriptor->width, descriptor->height, descriptor->depth,
			  descriptor->channels);
}

CUresult cuArrayDestroy(CUarray array)
{
	return give(ARRAY_BLOCK, (uint64_t)array);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUarray3DDescriptor *descriptor,
				u32 levels)
{
	(void)levels;
	return take_array((void **)array, descriptor->width, descriptor->height, descriptor->depth,
			  descriptor->channels);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	return give(ARRAY_BLOCK, (uint64_t)array);
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	CUcontext context;
	CUresult result = driver_context(&context);

	if (!result) {
		pthread_mutex_lock(&driver_lock);
		*total = gpus[context->device].memory;
		*free = device_free(context->device);
		pthread_mutex_unlock(&driver_lock);
	}
	return result;
}
