/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, kernels, graphs and events. A kernel named work_250 takes 250 microseconds. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

/* As with the real driver, launches block when so much is queued. */
#define QUEUE_NS 1000000000ULL
#define FIRST_PAGE 4096

static _Atomic uint64_t launches;
static uint64_t deadly;

/* For tests alone. */
EXPORT uint64_t fakeCudaLaunches(void)
{
	return launches;
}

EXPORT CUresult cuModuleLoadData(void **module, const void *image)
{
	*module = (void *)image;
	return driver_ready();
}

/* The kernels of a calibration. */
static const struct {
	const char *name;
	uint64_t us;
} known[] = {{"compute", 10000}, {"fma32", 10000}, {"fill", 100}, {"triad", 3000}};

EXPORT CUresult cuModuleGetFunction(CUfunction *function, void *module, const char *name)
{
	const char *digits = strrchr(name, '_');
	uint64_t us = digits ? strtoull(digits + 1, NULL, 10) : 0;

	(void)module;
	for (size_t i = 0; i < sizeof(known) / sizeof(*known) && !digits; i++)
		if (!strcmp(name, known[i].name))
			us = known[i].us;
	if (!digits && !us)
		return CUDA_ERROR_NOT_FOUND;
	*function = calloc(1, sizeof(**function));
	(*function)->ns = us * 1000;
	(*function)->writes = !strcmp(name, "fill");
	return driver_ready();
}

CUstream driver_stream(CUcontext context, CUstream stream)
{
	return (uintptr_t)stream > 2 ? stream : context->streams;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, u32 flags)
{
	CUcontext context;
	CUresult result = driver_context(&context);

	(void)flags;
	if (result)
		return result;
	*stream = calloc(1, sizeof(**stream));
	(*stream)->context = context;
	pthread_mutex_lock(&driver_lock);
	(*stream)->next = context->streams->next;
	context->streams->next = *stream;
	pthread_mutex_unlock(&driver_lock);
	return CUDA_SUCCESS;
}

/* Puts work behind all that was queued before. */
static void queue(CUcontext context, CUstream stream, uint64_t ns)
{
	struct gpu *gpu = &gpus[context->device];
	uint64_t now = driver_now(), starts;

	pthread_mutex_lock(&driver_lock);
	starts = device_begin(context, now, &ns);
	gpu->busy_ns += ns;
	stream->busy_until = gpu->free_at;
	pthread_mutex_unlock(&driver_lock);
	if (starts > now + QUEUE_NS)
		driver_sleep_until(starts - QUEUE_NS);
}

CUresult driver_run(CUstream stream, uint64_t ns)
{
	CUcontext context;
	CUresult result = driver_context(&context);

	if (result)
		return result;
	stream = driver_stream(context, stream);
	if (stream->recording) {
		stream->recorded_ns += ns;
		return CUDA_SUCCESS;
	}
	atomic_fetch_add_explicit(&launches, 1, memory_order_relaxed);
	if (ns)
		queue(context, stream, ns);
	return CUDA_SUCCESS;
}

LAUNCH_KERNEL(cuLaunchKernel)
{
	CUcontext context;

	(void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)extra;
	/* As the real one does, it tells of a wrong address at the next call. */
	if (function->writes && parameters && !driver_context(&context) &&
	    *(const uint64_t *)parameters[0] < FIRST_PAGE)
		device_fault(context);
	return driver_run(stream, function->ns);
}

LAUNCH_KERNEL(cuLaunchKernel_ptsz)
{
	return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}

LAUNCH_EX(cuLaunchKernelEx)
{
	(void)parameters, (void)extra;
	return driver_run(config->stream, function->ns);
}

LAUNCH_EX(cuLaunchKernelEx_ptsz)
{
	return cuLaunchKernelEx(config, function, parameters, extra);
}

LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel)
{
	return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, NULL);
}

LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz)
{
	return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, NULL);
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUlaunchParams *list, u32 count, u32 flags)
{
	CUresult result = CUDA_SUCCESS;

	(void)flags;
	for (u32 i = 0; i < count && !result; i++)
		result = driver_run(list[i].stream, list[i].function->ns);
	return result;
}

CUresult cuLaunch(CUfunction function)
{
	return driver_run(NULL, function->ns);
}

CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
	(void)width, (void)height;
	return driver_run(NULL, function->ns);
}

CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
	(void)width, (void)height;
	return driver_run(stream, function->ns);
}

/* As a CUDA newer than us would bring: nobody hooks it. */
EXPORT CUresult cuLaunchKernelTomorrow(CUfunction function)
{
	return driver_run(NULL, function->ns);
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	(void)mode;
	stream->recording = true;
	stream->spoiled = false;
	stream->recorded_ns = stream->recorded_bytes = 0;
	return driver_ready();
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
	CUcontext context;
	CUresult result = driver_context(&context);

	if (!result)
		*status = driver_stream(context, stream)->recording;
	return result;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraphExec *graph)
{
	stream->recording = false;
	if (stream->spoiled)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	*graph = calloc(1, sizeof(**graph));
	(*graph)->ns = stream->recorded_ns;
	(*graph)->bytes = stream->recorded_bytes;
	return driver_ready();
}

bool stream_notes(CUstream stream, uint64_t bytes, CUresult *result)
{
	CUcontext context;

	*result = driver_context(&context);
	if (!*result && driver_stream(context, stream)->recording) {
		driver_stream(context, stream)->recorded_bytes += bytes;
		return true;
	}
	return *result;
}

EXPORT CUresult cuGraphCreate(CUgraph *graph, u32 flags)
{
	(void)flags;
	*graph = calloc(1, sizeof(struct CUgraphExec_st));
	return driver_ready();
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
				size_t count, CUmemAllocNodeParams *params)
{
	(void)after, (void)count;
	*node = NULL;
	if (!params->bytes || params->pool.location.type != LOCATION_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	((CUgraphExec)graph)->bytes += params->bytes;
	params->pointer = 0x1000;
	return driver_ready();
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
			CUgraphNodeParams *params)
{
	if (params->type != GRAPH_NODE_MEM_ALLOC)
		return driver_ready();
	return cuGraphAddMemAllocNode(node, graph, after, count, &params->of.alloc);
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
			   const void *edges, size_t count, CUgraphNodeParams *params)
{
	(void)edges;
	return cuGraphAddNode(node, graph, after, count, params);
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraphExec graph,
					    unsigned long long flags)
{
	(void)flags;
	*made = graph;
	return driver_ready();
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream)
{
	CUcontext context;
	CUresult result = driver_context(&context);

	if (!result && !graph->launched && !memory_for_graph(context->device, graph->bytes))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (result)
		return result;
	graph->launched = true;
	return driver_run(stream, graph->ns);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream)
{
	return cuGraphLaunch(graph, stream);
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	static _Thread_local int now;
	int before = now;

	now = *mode;
	*mode = before;
	return driver_ready();
}

EXPORT CUresult cuEventCreate(CUevent *event, u32 flags)
{
	*event = calloc(1, sizeof(**event));
	(*event)->timing = !(flags & EVENT_DISABLE_TIMING);
	return driver_ready();
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
	CUcontext context;
	CUresult result = driver_context(&context);

	if (result)
		return result;
	stream = driver_stream(context, stream);
	if (stream->recording) {
		stream->spoiled = true;
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	event->done_at = driver_now();
	if (stream->busy_until > event->done_at)
		event->done_at = stream->busy_until;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
	if (deadly)
		pthread_exit(NULL);
	driver_sleep_until(event->done_at);
	return driver_ready();
}

EXPORT CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
	*ms = (float)(end->done_at - start->done_at) / 1e6F;
	return driver_ready();
}

/* For tests alone: from now on a thread that waits for an event dies there. */
EXPORT void fakeCudaDeadly(uint64_t on)
{
	deadly = on;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
	free(event);
	return driver_ready();
}

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
	CUcontext context;
	CUresult result = driver_context(&context);

	if (result)
		return result;
	stream = driver_stream(context, stream);
	if (stream->recording) {
		stream->spoiled = true;
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	driver_sleep_until(stream->busy_until);
	return CUDA_SUCCESS;
}
