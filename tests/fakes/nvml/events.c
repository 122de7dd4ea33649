/* SPDX-License-Identifier: Apache-2.0 */
/* Xid errors and the like, as lines of the live file make them happen. */
#include <stdlib.h>
#include <time.h>

#include "library.h"

#define RING_SIZE 256
#define POLL_NS 10000000L
#define SUPPORTED (NVML_EVENT_XID | NVML_EVENT_DOUBLE_BIT_ECC)

struct event {
	unsigned int gpu;
	unsigned long long type;
	unsigned long long data;
};

struct event_set {
	unsigned long long next;
	unsigned long long registered[MAX_GPUS];
};

/* Sets read at their own pace; a set that sleeps through more than a ring loses the oldest. */
static struct event ring[RING_SIZE];
static unsigned long long recorded;

void events_record(unsigned int gpu, unsigned long long type, unsigned long long data)
{
	ring[recorded++ % RING_SIZE] = (struct event){gpu, type, data};
}

NVML_API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	ENTER();
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	*set = calloc(1, sizeof(**set));
	if (!*set)
		return NVML_ERROR_MEMORY;
	(*set)->next = recorded;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	ENTER();
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	free(set);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device,
						       unsigned long long *types)
{
	ENTER_DEVICE(device);
	(void)gpu;
	if (!types)
		return NVML_ERROR_INVALID_ARGUMENT;
	*types = SUPPORTED;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
					       nvmlEventSet_t set)
{
	ENTER_DEVICE(device);
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (types & ~(unsigned long long)SUPPORTED)
		return NVML_ERROR_NOT_SUPPORTED;
	set->registered[gpu->index] |= types;
	return NVML_SUCCESS;
}

static nvmlReturn_t take_event(const char *call, nvmlEventSet_t set, nvmlEventData_t *data)
{
	__attribute__((cleanup(library_leave))) struct entry entry = library_enter(call);

	if (entry.error)
		return entry.error;
	if (recorded - set->next > RING_SIZE)
		set->next = recorded - RING_SIZE;
	while (set->next < recorded) {
		const struct event *event = &ring[set->next++ % RING_SIZE];

		if (!(set->registered[event->gpu] & event->type))
			continue;
		*data = (nvmlEventData_t){
		    .device = (nvmlDevice_t)(uintptr_t)&library_machine()->gpus[event->gpu],
		    .eventType = event->type,
		    .eventData = event->data,
		    .gpuInstanceId = 0xFFFFFFFFU,
		    .computeInstanceId = 0xFFFFFFFFU,
		};
		return NVML_SUCCESS;
	}
	return NVML_ERROR_TIMEOUT;
}

/* The lock is not held while waiting: other threads go on reading. */
NVML_API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data,
					  unsigned int timeout_ms)
{
	const struct timespec pause = {0, POLL_NS};
	const unsigned long long end = library_now_us() + timeout_ms * 1000ULL;
	nvmlReturn_t result;

	if (!set || !data)
		return NVML_ERROR_INVALID_ARGUMENT;
	while ((result = take_event(__func__, set, data)) == NVML_ERROR_TIMEOUT) {
		if (library_now_us() >= end)
			break;
		nanosleep(&pause, NULL);
	}
	return result;
}
