/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that puts work on the GPU: through the gate, then on to the driver. */
#include "driver/hooks.h"
#include "gate.h"
#include "memory/graphs.h"

/* The default stream of the variants with one per thread. */
#define PER_THREAD_STREAM(stream) ((stream) ? (stream) : (CUstream)2)

#define PASS_ON(name, stream, ...)                                                                 \
	do {                                                                                       \
		__typeof__(&(name)) real = REAL(name);                                             \
		if (!likely(real))                                                                 \
			return CUDA_ERROR_NOT_FOUND;                                               \
		gate_pass(stream);                                                                 \
		return real(__VA_ARGS__);                                                          \
	} while (0)

#define LAUNCH_GRAPH(name, in)                                                                     \
	do {                                                                                       \
		CUresult result_;                                                                  \
		NEED(name);                                                                        \
		gate_pass(in);                                                                     \
		result_ = real(graph, stream);                                                     \
		graphs_launched();                                                                 \
		return result_;                                                                    \
	} while (0)

LAUNCH_KERNEL(cuLaunchKernel)
{
	PASS_ON(cuLaunchKernel, stream, function, gx, gy, gz, bx, by, bz, shared, stream,
		parameters, extra);
}

LAUNCH_KERNEL(cuLaunchKernel_ptsz)
{
	PASS_ON(cuLaunchKernel_ptsz, PER_THREAD_STREAM(stream), function, gx, gy, gz, bx, by, bz,
		shared, stream, parameters, extra);
}

LAUNCH_EX(cuLaunchKernelEx)
{
	PASS_ON(cuLaunchKernelEx, config ? config->stream : NULL, config, function, parameters,
		extra);
}

LAUNCH_EX(cuLaunchKernelEx_ptsz)
{
	PASS_ON(cuLaunchKernelEx_ptsz, PER_THREAD_STREAM(config ? config->stream : NULL), config,
		function, parameters, extra);
}

LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel)
{
	PASS_ON(cuLaunchCooperativeKernel, stream, function, gx, gy, gz, bx, by, bz, shared, stream,
		parameters);
}

LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz)
{
	PASS_ON(cuLaunchCooperativeKernel_ptsz, PER_THREAD_STREAM(stream), function, gx, gy, gz, bx,
		by, bz, shared, stream, parameters);
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUlaunchParams *list, u32 count, u32 flags)
{
	PASS_ON(cuLaunchCooperativeKernelMultiDevice, list && count ? list->stream : NULL, list,
		count, flags);
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream)
{
	LAUNCH_GRAPH(cuGraphLaunch, stream);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream)
{
	LAUNCH_GRAPH(cuGraphLaunch_ptsz, PER_THREAD_STREAM(stream));
}

CUresult cuLaunch(CUfunction function)
{
	PASS_ON(cuLaunch, NULL, function);
}

CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
	PASS_ON(cuLaunchGrid, NULL, function, width, height);
}

CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
	PASS_ON(cuLaunchGridAsync, stream, function, width, height, stream);
}
