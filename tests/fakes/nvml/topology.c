/* SPDX-License-Identifier: Apache-2.0 */
/* NVLinks, PCIe relations, CPU and memory affinity, fabric. */
#include <string.h>

#include "library.h"
#include "pci.h"
#include "topology.h"

/* NVML's words: no NVLink at all is not the same as no such link. */
static nvmlReturn_t find_link(const struct gpu *gpu, unsigned int number, const struct link **link)
{
	if (!gpu->links)
		return NVML_ERROR_NOT_SUPPORTED;
	if (number >= gpu->links)
		return NVML_ERROR_INVALID_ARGUMENT;
	*link = &gpu->link[number];
	return NVML_SUCCESS;
}

/* A link is up when neither of its ends is down and the GPU at the other end is there. */
static bool link_is_up(const struct link *link)
{
	const struct gpu *peer;

	if (link->end == LINK_UNUSED || link->down)
		return false;
	if (link->end != LINK_GPU)
		return true;
	peer = &library_machine()->gpus[link->peer];
	return !peer->lost && !peer->link[link->peer_link].down;
}

bool topology_link_up(const struct gpu *gpu, unsigned int number, nvmlReturn_t *error)
{
	const struct link *link = NULL;

	*error = find_link(gpu, number, &link);
	return *error == NVML_SUCCESS && link_is_up(link);
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int number,
					       unsigned int *active)
{
	ENTER_DEVICE(device);
	nvmlReturn_t error;
	const bool up = topology_link_up(gpu, number, &error);

	if (!error)
		*active = up;
	return error;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int number,
						 unsigned int *version)
{
	ENTER_DEVICE(device);
	const struct link *link;
	const nvmlReturn_t error = find_link(gpu, number, &link);

	if (!error)
		*version = gpu->nvlink_version;
	return error;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int number,
						    unsigned int capability, unsigned int *result)
{
	ENTER_DEVICE(device);
	const struct link *link;
	const nvmlReturn_t error = find_link(gpu, number, &link);

	if (error)
		return error;
	if (capability > 5)
		return NVML_ERROR_INVALID_ARGUMENT;
	*result = 1;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int number,
							  nvmlPciInfo_t *pci)
{
	ENTER_DEVICE(device);
	const struct machine *machine = library_machine();
	const struct link *link;
	const nvmlReturn_t error = find_link(gpu, number, &link);

	if (error)
		return error;
	switch (link->end) {
	case LINK_UNUSED:
		return NVML_ERROR_INVALID_ARGUMENT;
	case LINK_GPU:
		pci_fill(pci, &machine->gpus[link->peer].pci,
			 machine->gpus[link->peer].pci_device_id);
		break;
	case LINK_SWITCH:
		pci_fill(pci, &machine->switches[link->peer], 0x22a310de);
		break;
	case LINK_HIDDEN: /* what a virtual machine's driver leaves in the text */
		memset(pci, 0, sizeof(*pci));
		memset(pci->busId, 0xff, 4);
		memset(pci->busIdLegacy, 0xff, 4);
		break;
	}
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int number,
							  unsigned int *type)
{
	ENTER_DEVICE(device);
	const struct link *link;
	const nvmlReturn_t error = find_link(gpu, number, &link);

	if (error)
		return error;
	switch (link->end) {
	case LINK_UNUSED:
		return NVML_ERROR_INVALID_ARGUMENT;
	case LINK_GPU:
		*type = NVML_LINK_TO_GPU;
		break;
	case LINK_SWITCH:
		*type = NVML_LINK_TO_SWITCH;
		break;
	case LINK_HIDDEN:
		*type = NVML_LINK_TO_UNKNOWN;
		break;
	}
	return NVML_SUCCESS;
}

/* Both devices of a call on a pair; the second is checked as the first was. */
static nvmlReturn_t check_pair(const struct gpu *one, nvmlDevice_t other)
{
	const struct machine *machine = library_machine();

	if (other < machine->gpus || other >= machine->gpus + machine->gpu_count || other == one)
		return NVML_ERROR_INVALID_ARGUMENT;
	return other->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other,
							  unsigned int *level)
{
	ENTER_DEVICE(device);
	static const unsigned int levels[PCIE_LEVELS] = {
	    NVML_TOPOLOGY_NODE, NVML_TOPOLOGY_HOSTBRIDGE, NVML_TOPOLOGY_MULTIPLE};
	const nvmlReturn_t error = check_pair(gpu, other);

	if (error)
		return error;
	if (gpu->numa != other->numa) {
		*level = NVML_TOPOLOGY_SYSTEM;
		return NVML_SUCCESS;
	}
	for (unsigned int i = 0; i < PCIE_LEVELS; i++) {
		if (gpu->pcie[i] != other->pcie[i]) {
			*level = levels[i];
			return NVML_SUCCESS;
		}
	}
	*level = NVML_TOPOLOGY_SINGLE;
	return NVML_SUCCESS;
}

/* One live link to the other, or live links of both to one switch. */
static bool joined_by_nvlink(const struct gpu *one, const struct gpu *other)
{
	bool switches[MAX_SWITCHES] = {false};

	for (unsigned int i = 0; i < one->links; i++) {
		if (!link_is_up(&one->link[i]))
			continue;
		if (one->link[i].end == LINK_GPU && one->link[i].peer == other->index)
			return true;
		if (one->link[i].end == LINK_HIDDEN)
			switches[0] = true;
		if (one->link[i].end == LINK_SWITCH)
			switches[one->link[i].peer] = true;
	}
	for (unsigned int i = 0; i < other->links; i++) {
		const struct link *link = &other->link[i];

		if (link_is_up(link) && link->end == LINK_SWITCH && switches[link->peer])
			return true;
		if (link_is_up(link) && link->end == LINK_HIDDEN && switches[0])
			return true;
	}
	return false;
}

NVML_API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other,
					     unsigned int index, unsigned int *status)
{
	ENTER_DEVICE(device);
	const nvmlReturn_t error = check_pair(gpu, other);

	if (error)
		return error;
	if (index > 5)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (joined_by_nvlink(gpu, other))
		*status = 0;
	else if (index == 2)
		*status = 5; /* not supported over NVLink */
	else
		*status = gpu->numa == other->numa ? 0 : 3; /* not across the sockets */
	return NVML_SUCCESS;
}

static nvmlReturn_t give_cpus(const struct gpu *gpu, unsigned int words, unsigned long *set)
{
	if (!words || !set)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < words; i++)
		set[i] = i < CPU_WORDS ? gpu->cpus[i] : 0;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words,
					       unsigned long *set)
{
	ENTER_DEVICE(device);
	return give_cpus(gpu, words, set);
}

NVML_API nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words,
							  unsigned long *set, unsigned int scope)
{
	ENTER_DEVICE(device);
	return scope > 1 ? NVML_ERROR_INVALID_ARGUMENT : give_cpus(gpu, words, set);
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words,
						  unsigned long *set, unsigned int scope)
{
	ENTER_DEVICE(device);
	if (!words || !set || scope > 1 || gpu->numa >= words * 64)
		return NVML_ERROR_INVALID_ARGUMENT;
	memset(set, 0, words * sizeof(*set));
	set[gpu->numa / 64] = 1UL << (gpu->numa % 64);
	return NVML_SUCCESS;
}

/* The id of the GPU's own memory as a NUMA node, which only Grace machines have. */
NVML_API nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{
	ENTER_DEVICE(device);
	(void)gpu;
	(void)node;
	return NVML_ERROR_NOT_SUPPORTED;
}
