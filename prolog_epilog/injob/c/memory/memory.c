/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that takes GPU memory: booked first, so that the quota is never exceeded. */
#include "driver/hooks.h"
#include "memory/books.h"
#include "memory/graphs.h"
#include "memory/retry.h"

/* Asks the driver for what was booked; the booking ends if it says no, or cannot be noted. */
#define TAKE(kind, device, size, name, call, undo)                                                 \
	do {                                                                                       \
		CUresult result_;                                                                  \
		if (!books_reserve(device, size))                                                  \
			return CUDA_ERROR_OUT_OF_MEMORY;                                           \
		result_ = TRY(device, size, call);                                                 \
		if (!result_ && !books_note(kind, (uint64_t)(name), device, size, 1)) {            \
			undo;                                                                      \
			result_ = CUDA_ERROR_OUT_OF_MEMORY;                                        \
		}                                                                                  \
		if (result_)                                                                       \
			books_release(device, size);                                               \
		return result_;                                                                    \
	} while (0)

/* Struck out before the driver can give the same name to another thread; back if it says no. */
#define GIVE_BACK(kind, name, call)                                                                \
	do {                                                                                       \
		struct holding struck_;                                                            \
		bool ours_ = books_strike(kind, (uint64_t)(name), &struck_);                       \
		CUresult result_ = (call);                                                         \
		if (ours_ &&                                                                       \
		    (result_ == CUDA_SUCCESS ||                                                    \
		     !books_note(kind, (uint64_t)(name), struck_.device, struck_.size, 1)))        \
			books_release(struck_.device, struck_.size);                               \
		return result_;                                                                    \
	} while (0)

/*
 * Takes a guest's memory as managed memory, which the driver moves off the GPU when the host asks
 * for more than is free. False: it is not wanted, or this driver has none.
 */
static bool take_managed(CUdeviceptr *pointer, size_t size)
{
	static _Atomic int known;

	return variable_set(&known, "BERTH_MEMORY_MANAGED") && REAL(cuMemAllocManaged) &&
	       !REAL(cuMemAllocManaged)(pointer, size, ATTACH_GLOBAL);
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
	NEED(cuMemAlloc_v2);
	CUdevice device = current_device();

	TAKE(POINTER, device, size, *pointer,
	     take_managed(pointer, size) ? CUDA_SUCCESS : real(pointer, size),
	     REAL(cuMemFree_v2)(*pointer));
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, u32 flags)
{
	NEED(cuMemAllocManaged);
	CUdevice device = current_device();

	TAKE(POINTER, device, size, *pointer, real(pointer, size, flags),
	     REAL(cuMemFree_v2)(*pointer));
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
			    u32 element)
{
	NEED(cuMemAllocPitch_v2);
	CUdevice device = current_device();
	/* The driver pads rows to at most this. */
	size_t row = (width + 511) / 512 * 512, size = row * height;

	TAKE(POINTER, device, size, *pointer,
	     pitch && take_managed(pointer, size) ? (*pitch = row, CUDA_SUCCESS)
						  : real(pointer, pitch, width, height, element),
	     REAL(cuMemFree_v2)(*pointer));
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	NEED(cuMemFree_v2);
	GIVE_BACK(POINTER, pointer, real(pointer));
}

/* Into a graph that is being recorded, it is a node of this graph. */
#define TAKE_IN_ORDER(device, size, pointer, stream, call, undo)                                   \
	do {                                                                                       \
		CUresult recorded_;                                                                \
		if (!stream_records(stream))                                                       \
			TAKE(POINTER, device, size, *pointer, call, undo);                         \
		if (!graphs_reserve(device, size))                                                 \
			return CUDA_ERROR_OUT_OF_MEMORY;                                           \
		recorded_ = (call);                                                                \
		if (recorded_)                                                                     \
			graphs_release(device, size);                                              \
		return recorded_;                                                                  \
	} while (0)

#define ALLOC_ASYNC(name, free)                                                                    \
	CUresult name(CUdeviceptr *pointer, size_t size, CUstream stream)                          \
	{                                                                                          \
		NEED(name);                                                                        \
		CUdevice device = current_device();                                                \
		TAKE_IN_ORDER(device, size, pointer, stream, real(pointer, size, stream),          \
			      REAL(free)(*pointer, stream));                                       \
	}
#define ALLOC_FROM_POOL(name, free)                                                                \
	CUresult name(CUdeviceptr *pointer, size_t size, CUmemPool pool, CUstream stream)          \
	{                                                                                          \
		NEED(name);                                                                        \
		CUdevice device = current_device();                                                \
		TAKE_IN_ORDER(device, size, pointer, stream, real(pointer, size, pool, stream),    \
			      REAL(free)(*pointer, stream));                                       \
	}
#define FREE_ASYNC(name)                                                                           \
	CUresult name(CUdeviceptr pointer, CUstream stream)                                        \
	{                                                                                          \
		NEED(name);                                                                        \
		GIVE_BACK(POINTER, pointer, real(pointer, stream));                                \
	}

ALLOC_ASYNC(cuMemAllocAsync, cuMemFreeAsync)
ALLOC_ASYNC(cuMemAllocAsync_ptsz, cuMemFreeAsync_ptsz)
ALLOC_FROM_POOL(cuMemAllocFromPoolAsync, cuMemFreeAsync)
ALLOC_FROM_POOL(cuMemAllocFromPoolAsync_ptsz, cuMemFreeAsync_ptsz)
FREE_ASYNC(cuMemFreeAsync)
FREE_ASYNC(cuMemFreeAsync_ptsz)

CUresult cuMemCreate(CUmemHandle *handle, size_t size, const CUmemProp *prop,
		     unsigned long long flags)
{
	NEED(cuMemCreate);
	if (!prop || prop->location.type != LOCATION_DEVICE)
		return real(handle, size, prop, flags);
	TAKE(HANDLE, prop->location.id, size, *handle, real(handle, size, prop, flags),
	     REAL(cuMemRelease)(*handle));
}

/* Physical memory lives as long as a handle or a mapping of it does. */
static void use_less(CUmemHandle handle)
{
	struct holding *holding = books_find(HANDLE, handle), struck;

	if (holding && atomic_fetch_sub(&holding->uses, 1) == 1 &&
	    books_strike(HANDLE, handle, &struck))
		books_release(struck.device, struck.size);
}

static void use_more(CUmemHandle handle)
{
	struct holding *holding = books_find(HANDLE, handle);

	if (holding)
		atomic_fetch_add(&holding->uses, 1);
}

CUresult cuMemRelease(CUmemHandle handle)
{
	NEED(cuMemRelease);
	CUresult result = real(handle);

	if (!result)
		use_less(handle);
	return result;
}

CUresult cuMemRetainAllocationHandle(CUmemHandle *handle, void *address)
{
	NEED(cuMemRetainAllocationHandle);
	CUresult result = real(handle, address);

	if (!result)
		use_more(*handle);
	return result;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemHandle handle,
		  unsigned long long flags)
{
	NEED(cuMemMap);
	CUresult result = real(pointer, size, offset, handle, flags);

	if (!result && books_find(HANDLE, handle)) {
		use_more(handle);
		/* Unnoted, it counts as mapped for good: too much rather than too little. */
		books_note(MAPPING, pointer, 0, size, handle);
	}
	return result;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
	NEED(cuMemUnmap);
	CUresult result = real(pointer, size);
	struct holding mapping;

	/* One call may undo several mappings that lie side by side. */
	for (CUdeviceptr at = pointer; !result && at < pointer + size; at += mapping.size) {
		if (!books_strike(MAPPING, at, &mapping) || !mapping.size)
			break;
		use_less(atomic_load(&mapping.uses));
	}
	return result;
}

static uint64_t bytes_of_format(int format)
{
	switch (format) {
	case 0x01: /* 8 bits */
	case 0x08:
		return 1;
	case 0x02: /* 16 bits */
	case 0x09:
	case 0x10:
		return 2;
	default: /* 32 bits; the packed ones take no more */
		return 4;
	}
}

static uint64_t array_bytes(const CUarray3DDescriptor *made)
{
	uint64_t rows = made->height ? made->height : 1, slices = made->depth ? made->depth : 1;

	if (made->flags & (ARRAY_SPARSE | ARRAY_DEFERRED_MAPPING))
		return 0;
	return made->width * rows * slices * made->channels * bytes_of_format(made->format);
}

CUresult cuArrayCreate_v2(CUarray *array, const CUarrayDescriptor *descriptor)
{
	NEED(cuArrayCreate_v2);
	CUdevice device = current_device();
	CUarray3DDescriptor flat = {0};

	if (!descriptor)
		return real(array, descriptor);
	flat.width = descriptor->width;
	flat.height = descriptor->height;
	flat.format = descriptor->format;
	flat.channels = descriptor->channels;
	TAKE(ARRAY, device, array_bytes(&flat), *array, real(array, descriptor),
	     REAL(cuArrayDestroy)(*array));
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUarray3DDescriptor *descriptor)
{
	NEED(cuArray3DCreate_v2);
	CUdevice device = current_device();

	if (!descriptor)
		return real(array, descriptor);
	TAKE(ARRAY, device, array_bytes(descriptor), *array, real(array, descriptor),
	     REAL(cuArrayDestroy)(*array));
}

CUresult cuArrayDestroy(CUarray array)
{
	NEED(cuArrayDestroy);
	GIVE_BACK(ARRAY, array, real(array));
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUarray3DDescriptor *descriptor,
				u32 levels)
{
	NEED(cuMipmappedArrayCreate);
	CUdevice device = current_device();
	uint64_t size;

	if (!descriptor)
		return real(array, descriptor, levels);
	/* Each level halves each side: together they take at most this. */
	size = array_bytes(descriptor) * (levels > 1 ? 2 : 1);
	TAKE(MIPMAPPED, device, size, *array, real(array, descriptor, levels),
	     REAL(cuMipmappedArrayDestroy)(*array));
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	NEED(cuMipmappedArrayDestroy);
	GIVE_BACK(MIPMAPPED, array, real(array));
}

/*
 * The program sees a GPU as large as its quota, and sizes itself by it. What an owner's guest would
 * give back is free to the owner.
 */
CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	NEED(cuMemGetInfo_v2);
	CUresult result = real(free, total);
	uint64_t left, quota;

	if (!result && free && total) {
		*free += retry_room(current_device());
		*free = *free < *total ? *free : *total;
	}
	if (!result && books_left(current_device(), &left, &quota)) {
		if (free && left < *free)
			*free = left;
		if (total && quota < *total)
			*total = quota;
	}
	return result;
}
