/* SPDX-License-Identifier: Apache-2.0 */
/* What a device is and what it was set to. */
#include "pci.h"

#include <stdio.h>

#include "library.h"

void pci_fill(nvmlPciInfo_t *info, const struct pci_address *pci, unsigned int device_id)
{
	*info = (nvmlPciInfo_t){
	    .domain = pci->domain,
	    .bus = pci->bus,
	    .device = pci->device,
	    .pciDeviceId = device_id,
	};
	snprintf(info->busIdLegacy, sizeof(info->busIdLegacy), "%04X:%02X:%02X.%X",
		 pci->domain & 0xffff, pci->bus, pci->device, pci->function);
	snprintf(info->busId, sizeof(info->busId), "%08X:%02X:%02X.%X", pci->domain, pci->bus,
		 pci->device, pci->function);
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	ENTER_DEVICE(device);
	if (!pci)
		return NVML_ERROR_INVALID_ARGUMENT;
	pci_fill(pci, &gpu->pci, gpu->pci_device_id);
	return NVML_SUCCESS;
}

static nvmlReturn_t give_number(unsigned int value, unsigned int *number)
{
	if (!number)
		return NVML_ERROR_INVALID_ARGUMENT;
	*number = value;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	ENTER_DEVICE(device);
	return give_number(gpu->index, index);
}

NVML_API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
	ENTER_DEVICE(device);
	return give_number(gpu->minor, minor);
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int *mode)
{
	ENTER_DEVICE(device);
	return give_number(gpu->compute_mode, mode);
}

NVML_API nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned int mode)
{
	ENTER_DEVICE(device);
	if (mode != 0 && mode != 2 && mode != 3) /* 1 was removed from NVML long ago */
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!library_tell_all("gpu %u compute-mode=%u\n", gpu->index, mode))
		return NVML_ERROR_NO_PERMISSION;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *cores)
{
	ENTER_DEVICE(device);
	if (!gpu->cores)
		return NVML_ERROR_NOT_SUPPORTED;
	return give_number(gpu->cores, cores);
}

NVML_API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major,
							 int *minor)
{
	ENTER_DEVICE(device);
	if (!major || !minor)
		return NVML_ERROR_INVALID_ARGUMENT;
	*major = (int)gpu->sm_major;
	*minor = (int)gpu->sm_minor;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current,
					   unsigned int *pending)
{
	ENTER_DEVICE(device);
	if (gpu->sm_major < 8)
		return NVML_ERROR_NOT_SUPPORTED;
	if (!current || !pending)
		return NVML_ERROR_INVALID_ARGUMENT;
	*current = *pending = gpu->mig;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	ENTER_DEVICE(device);
	return give_number(gpu->sm_major < 8 ? 0 : MAX_MIG_DEVICES, count);
}

/* MIG devices can be counted; each further call on one is refused. */
NVML_API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
							  nvmlDevice_t *mig)
{
	ENTER_DEVICE(device);
	static struct gpu devices[MAX_GPUS][MAX_MIG_DEVICES];

	if (gpu->sm_major < 8)
		return NVML_ERROR_NOT_SUPPORTED;
	if (!mig || index >= MAX_MIG_DEVICES)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!gpu->mig || index >= gpu->mig_devices)
		return NVML_ERROR_NOT_FOUND;
	*mig = &devices[gpu->index][index];
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
	ENTER_DEVICE(device);
	(void)gpu;
	(void)id;
	return NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
	ENTER_DEVICE(device);
	(void)gpu;
	(void)id;
	return NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, void *attributes)
{
	ENTER_DEVICE(device);
	(void)gpu;
	(void)attributes;
	return NVML_ERROR_NOT_SUPPORTED;
}
