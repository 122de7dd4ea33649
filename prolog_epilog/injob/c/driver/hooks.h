/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one table of hooks: X(exported name, name for cuGetProcAddress, since which CUDA version that
 * name means this function, 1 for the variant with a default stream per thread).
 */
#pragma once

#include "driver/cuda_abi.h"

#define HOOKS(X)                                                                                   \
	X(cuLaunchKernel, "cuLaunchKernel", 4000, 0)                                               \
	X(cuLaunchKernel_ptsz, "cuLaunchKernel", 7000, 1)                                          \
	X(cuLaunchKernelEx, "cuLaunchKernelEx", 11060, 0)                                          \
	X(cuLaunchKernelEx_ptsz, "cuLaunchKernelEx", 11060, 1)                                     \
	X(cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel", 9000, 0)                         \
	X(cuLaunchCooperativeKernel_ptsz, "cuLaunchCooperativeKernel", 9000, 1)                    \
	X(cuLaunchCooperativeKernelMultiDevice, "cuLaunchCooperativeKernelMultiDevice", 9000, 0)   \
	X(cuGraphLaunch, "cuGraphLaunch", 10000, 0)                                                \
	X(cuGraphLaunch_ptsz, "cuGraphLaunch", 10000, 1)                                           \
	X(cuLaunch, "cuLaunch", 2000, 0)                                                           \
	X(cuLaunchGrid, "cuLaunchGrid", 2000, 0)                                                   \
	X(cuLaunchGridAsync, "cuLaunchGridAsync", 2000, 0)                                         \
	X(cuMemAlloc_v2, "cuMemAlloc", 3020, 0)                                                    \
	X(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, 0)                                          \
	X(cuMemAllocManaged, "cuMemAllocManaged", 6000, 0)                                         \
	X(cuMemFree_v2, "cuMemFree", 3020, 0)                                                      \
	X(cuMemAllocAsync, "cuMemAllocAsync", 11020, 0)                                            \
	X(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020, 1)                                       \
	X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, 0)                            \
	X(cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 11020, 1)                       \
	X(cuMemFreeAsync, "cuMemFreeAsync", 11020, 0)                                              \
	X(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020, 1)                                         \
	X(cuMemCreate, "cuMemCreate", 10020, 0)                                                    \
	X(cuMemRelease, "cuMemRelease", 10020, 0)                                                  \
	X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000, 0)                    \
	X(cuMemMap, "cuMemMap", 10020, 0)                                                          \
	X(cuMemUnmap, "cuMemUnmap", 10020, 0)                                                      \
	X(cuArrayCreate_v2, "cuArrayCreate", 3020, 0)                                              \
	X(cuArray3DCreate_v2, "cuArray3DCreate", 3020, 0)                                          \
	X(cuArrayDestroy, "cuArrayDestroy", 2000, 0)                                               \
	X(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 5000, 0)                               \
	X(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 5000, 0)                             \
	X(cuMemGetInfo_v2, "cuMemGetInfo", 3020, 0)                                                \
	X(cuGraphAddMemAllocNode, "cuGraphAddMemAllocNode", 11040, 0)                              \
	X(cuGraphAddNode, "cuGraphAddNode", 12020, 0)                                              \
	X(cuGraphAddNode_v2, "cuGraphAddNode", 12030, 0)                                           \
	X(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", 11040, 0)                                  \
	X(cuCtxCreate_v2, "cuCtxCreate", 3020, 0)                                                  \
	X(cuCtxCreate_v3, "cuCtxCreate", 11040, 0)                                                 \
	X(cuCtxCreate_v4, "cuCtxCreate", 12050, 0)                                                 \
	X(cuCtxDestroy_v2, "cuCtxDestroy", 4000, 0)                                                \
	X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, 0)                         \
	X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, 0)                     \
	X(cuGetProcAddress, "cuGetProcAddress", 11030, 0)                                          \
	X(cuGetProcAddress_v2, "cuGetProcAddress", 12000, 0)                                       \
	X(cuGetProcAddress_v2_ptsz, "cuGetProcAddress", 12000, 1)

enum hook {
#define X(name, base, since, per_thread) HOOK_##name,
	HOOKS(X)
#undef X
	    HOOK_COUNT
};

/* The driver's own function, NULL where this driver has none. */
void *hook_real(enum hook hook);
#define REAL(name) ((__typeof__(&(name)))hook_real(HOOK_##name))

/* Begins a hook: `real` is the driver's own function. */
#define NEED(name)                                                                                 \
	__typeof__(&(name)) real = REAL(name);                                                     \
	if (!real)                                                                                 \
	return CUDA_ERROR_NOT_FOUND
