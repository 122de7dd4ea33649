/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What we need of the driver's binary interface, so that nothing here needs the CUDA toolkit. Names
 * are the exported ones: where a function has several versions, the newest that programs still use.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUmemPool_st *CUmemPool;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
};

enum { GET_PROC_PER_THREAD_STREAM = 2 };
enum { EVENT_BLOCKING_SYNC = 1, EVENT_DISABLE_TIMING = 2 };
enum { CAPTURE_MODE_RELAXED = 2 };
enum { LOCATION_DEVICE = 1 };
/* Managed memory that every stream may use. */
enum { ATTACH_GLOBAL = 1 };
enum { GRAPH_NODE_MEM_ALLOC = 10 };
/* The memory that the driver holds for graphs now. */
enum { GRAPH_MEM_RESERVED_CURRENT = 2 };
/* Flags of arrays whose memory is not made with them: sparse, and mapped later. */
enum { ARRAY_SPARSE = 0x40, ARRAY_DEFERRED_MAPPING = 0x80 };

typedef struct {
	unsigned char bytes[16];
} CUuuid;

typedef struct {
	unsigned int grid[3], block[3], shared_bytes;
	CUstream stream;
	void *attributes;
	unsigned int attribute_count;
} CUlaunchConfig;

typedef struct {
	CUfunction function;
	unsigned int grid[3], block[3], shared_bytes;
	CUstream stream;
	void **parameters;
} CUlaunchParams;

typedef struct {
	size_t width, height;
	int format;
	unsigned int channels;
} CUarrayDescriptor;

typedef struct {
	size_t width, height, depth;
	int format;
	unsigned int channels, flags;
} CUarray3DDescriptor;

typedef struct {
	int type, handle_types;
	struct {
		int type, id;
	} location;
	void *metadata;
	unsigned char flags[8];
} CUmemProp;

typedef struct {
	struct {
		int type, handle_types;
		struct {
			int type, id;
		} location;
		void *security;
		unsigned char rest[64];
	} pool;
	const void *access;
	size_t access_count, bytes;
	CUdeviceptr pointer;
} CUmemAllocNodeParams;

typedef struct {
	int type, reserved[3];
	union {
		CUmemAllocNodeParams alloc;
		long long words[29];
	} of;
	long long reserved_too;
} CUgraphNodeParams;
_Static_assert(sizeof(CUgraphNodeParams) == 256, "as in cuda.h");

typedef unsigned int u32;

/* Launches. */
#define LAUNCH_KERNEL(name)                                                                        \
	CUresult name(CUfunction function, u32 gx, u32 gy, u32 gz, u32 bx, u32 by, u32 bz,         \
		      u32 shared, CUstream stream, void **parameters, void **extra)
#define LAUNCH_EX(name)                                                                            \
	CUresult name(const CUlaunchConfig *config, CUfunction function, void **parameters,        \
		      void **extra)
#define LAUNCH_COOPERATIVE(name)                                                                   \
	CUresult name(CUfunction function, u32 gx, u32 gy, u32 gz, u32 bx, u32 by, u32 bz,         \
		      u32 shared, CUstream stream, void **parameters)
EXPORT LAUNCH_KERNEL(cuLaunchKernel);
EXPORT LAUNCH_KERNEL(cuLaunchKernel_ptsz);
EXPORT LAUNCH_EX(cuLaunchKernelEx);
EXPORT LAUNCH_EX(cuLaunchKernelEx_ptsz);
EXPORT LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel);
EXPORT LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz);
EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUlaunchParams *list, u32 count, u32 flags);
EXPORT CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream);
EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream);
EXPORT CUresult cuLaunch(CUfunction function);
EXPORT CUresult cuLaunchGrid(CUfunction function, int width, int height);
EXPORT CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream);

/* Memory. */
EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size);
EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
				   u32 element);
EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, u32 flags);
EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer);
EXPORT CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream);
EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t size, CUstream stream);
EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemPool pool,
					CUstream stream);
EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t size, CUmemPool pool,
					     CUstream stream);
EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream);
EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream);
EXPORT CUresult cuMemCreate(CUmemHandle *handle, size_t size, const CUmemProp *prop,
			    unsigned long long flags);
EXPORT CUresult cuMemRelease(CUmemHandle handle);
EXPORT CUresult cuMemRetainAllocationHandle(CUmemHandle *handle, void *address);
EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemHandle handle,
			 unsigned long long flags);
EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t size);
EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUarrayDescriptor *descriptor);
EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUarray3DDescriptor *descriptor);
EXPORT CUresult cuArrayDestroy(CUarray array);
EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array,
				       const CUarray3DDescriptor *descriptor, u32 levels);
EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array);
EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total);

/* Memory of graphs. */
EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
				       size_t count, CUmemAllocNodeParams *params);
EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
			       size_t count, CUgraphNodeParams *params);
EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
				  const void *edges, size_t count, CUgraphNodeParams *params);
EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device);

/* Contexts. */
EXPORT CUresult cuCtxCreate_v2(CUcontext *context, u32 flags, CUdevice device);
EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, u32 flags,
			       CUdevice device);
EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, u32 flags, CUdevice device);
EXPORT CUresult cuCtxDestroy_v2(CUcontext context);
EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);

/* The driver's own look-up. */
EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags);
EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version,
				    uint64_t flags, int *status);
EXPORT CUresult cuGetProcAddress_v2_ptsz(const char *symbol, void **function, int version,
					 uint64_t flags, int *status);
