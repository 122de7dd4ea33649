/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A graph's memory is taken when it is first launched, and kept by the driver for later launches of
 * this and other graphs. A node's size is booked when the node is made, so that the quota can
 * refuse it. After a launch the booking becomes what the driver says that it holds for graphs.
 */
#include "memory/graphs.h"

#include "driver/driver.h"
#include "driver/hooks.h"
#include "memory/books.h"

/* Between two questions to the driver. */
#define PAUSE_NS 100000000ULL

_Atomic bool graphs_take_memory;

static struct {
	_Atomic uint64_t booked, next;
} graphs[DEVICES_MAX];

bool stream_records(CUstream stream)
{
	static CUresult (*_Atomic ask)(CUstream, int *);
	int status = 0;

	/* The default stream of all threads cannot be recorded, and asking about it may fail. */
	if ((uintptr_t)stream <= 1)
		return false;
	if (!ask)
		atomic_store(&ask,
			     (CUresult(*)(CUstream, int *))driver_symbol("cuStreamIsCapturing"));
	return ask && !ask(stream, &status) && status;
}

static void ask_driver(CUdevice device)
{
	CUresult (*ask)(CUdevice, int, uint64_t *) =
	    (CUresult(*)(CUdevice, int, uint64_t *))driver_symbol("cuDeviceGetGraphMemAttribute");
	uint64_t held = 0, before;

	if (!ask || ask(device, GRAPH_MEM_RESERVED_CURRENT, &held))
		return;
	before = atomic_exchange(&graphs[device].booked, held);
	if (held > before)
		books_add(device, held - before);
	else
		books_release(device, before - held);
}

void graphs_ask_driver(void)
{
	CUdevice device = current_device();
	uint64_t now = now_ns(), next;

	if (device < 0 || device >= DEVICES_MAX)
		return;
	next = atomic_load(&graphs[device].next);
	if (now >= next &&
	    atomic_compare_exchange_strong(&graphs[device].next, &next, now + PAUSE_NS))
		ask_driver(device);
}

bool graphs_reserve(CUdevice device, uint64_t size)
{
	if (device < 0 || device >= DEVICES_MAX)
		return true;
	if (!books_reserve(device, size))
		return false;
	atomic_fetch_add(&graphs[device].booked, size);
	/* The next launch is told from earlier ones. */
	atomic_store(&graphs[device].next, 0);
	atomic_store(&graphs_take_memory, true);
	return true;
}

void graphs_release(CUdevice device, uint64_t size)
{
	if (device < 0 || device >= DEVICES_MAX)
		return;
	atomic_fetch_sub(&graphs[device].booked, size);
	books_release(device, size);
}

void graphs_forget(void)
{
	atomic_store(&graphs_take_memory, false);
	for (int device = 0; device < DEVICES_MAX; device++) {
		atomic_store(&graphs[device].booked, 0);
		atomic_store(&graphs[device].next, 0);
	}
}

/* Adds a node that takes memory, if the quota has room for it. */
#define TAKE_LATER(node, call)                                                                     \
	do {                                                                                       \
		CUdevice device_ = (node)->pool.location.id;                                       \
		size_t size_ = (node)->bytes;                                                      \
		CUresult result_;                                                                  \
		if ((node)->pool.location.type != LOCATION_DEVICE)                                 \
			return (call);                                                             \
		if (!graphs_reserve(device_, size_))                                               \
			return CUDA_ERROR_OUT_OF_MEMORY;                                           \
		result_ = (call);                                                                  \
		if (result_)                                                                       \
			graphs_release(device_, size_);                                            \
		return result_;                                                                    \
	} while (0)

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
				size_t count, CUmemAllocNodeParams *params)
{
	NEED(cuGraphAddMemAllocNode);
	if (!params)
		return real(node, graph, after, count, params);
	TAKE_LATER(params, real(node, graph, after, count, params));
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
			CUgraphNodeParams *params)
{
	NEED(cuGraphAddNode);
	if (!params || params->type != GRAPH_NODE_MEM_ALLOC)
		return real(node, graph, after, count, params);
	TAKE_LATER(&params->of.alloc, real(node, graph, after, count, params));
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
			   const void *edges, size_t count, CUgraphNodeParams *params)
{
	NEED(cuGraphAddNode_v2);
	if (!params || params->type != GRAPH_NODE_MEM_ALLOC)
		return real(node, graph, after, edges, count, params);
	TAKE_LATER(&params->of.alloc, real(node, graph, after, edges, count, params));
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	NEED(cuDeviceGraphMemTrim);
	CUresult result = real(device);

	if (!result && device >= 0 && device < DEVICES_MAX && graphs_take_memory)
		ask_driver(device);
	return result;
}
