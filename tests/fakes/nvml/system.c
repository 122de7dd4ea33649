/* SPDX-License-Identifier: Apache-2.0 */
/* Calls about the driver and calls that find a device. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "library.h"
#include "text.h"

static nvmlReturn_t give_text(const char *text, char *buffer, unsigned int size)
{
	if (!buffer)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(text) >= size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(buffer, text);
	return NVML_SUCCESS;
}

NVML_API const char *nvmlErrorString(nvmlReturn_t result)
{
	switch (result) {
	case NVML_SUCCESS:
		return "Success";
	case NVML_ERROR_UNINITIALIZED:
		return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT:
		return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED:
		return "Not Supported";
	case NVML_ERROR_NO_PERMISSION:
		return "Insufficient Permissions";
	case NVML_ERROR_NOT_FOUND:
		return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE:
		return "Insufficient Size";
	case NVML_ERROR_DRIVER_NOT_LOADED:
		return "Driver Not Loaded";
	case NVML_ERROR_TIMEOUT:
		return "Timeout";
	case NVML_ERROR_FUNCTION_NOT_FOUND:
		return "Function Not Found";
	case NVML_ERROR_GPU_IS_LOST:
		return "GPU is lost";
	case NVML_ERROR_MEMORY:
		return "Insufficient Memory";
	case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
		return "Argument version mismatch";
	case NVML_ERROR_UNKNOWN:
		break;
	}
	return "Unknown Error";
}

NVML_API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	ENTER();
	return give_text(library_machine()->driver, version, length);
}

NVML_API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	ENTER();
	return give_text(library_machine()->nvml, version, length);
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	ENTER();
	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	*version = (int)library_machine()->cuda;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	ENTER();
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = library_machine()->gpu_count;
	return NVML_SUCCESS;
}

/* A lost device still has no handle to give. */
static nvmlReturn_t give_handle(const struct gpu *gpu, nvmlDevice_t *device)
{
	if (gpu->lost)
		return NVML_ERROR_GPU_IS_LOST;
	*device = (nvmlDevice_t)(uintptr_t)gpu;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	ENTER();
	if (!device || index >= library_machine()->gpu_count)
		return NVML_ERROR_INVALID_ARGUMENT;
	return give_handle(&library_machine()->gpus[index], device);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	ENTER();
	const struct machine *machine = library_machine();

	if (!uuid || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < machine->gpu_count; i++) {
		if (strcmp(machine->gpus[i].uuid, uuid) == 0)
			return give_handle(&machine->gpus[i], device);
	}
	return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
	ENTER();
	const struct machine *machine = library_machine();
	struct pci_address wanted;

	if (!bus_id || !device || !text_pci(bus_id, &wanted))
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < machine->gpu_count; i++) {
		const struct pci_address *pci = &machine->gpus[i].pci;

		if (pci->domain == wanted.domain && pci->bus == wanted.bus &&
		    pci->device == wanted.device)
			return give_handle(&machine->gpus[i], device);
	}
	return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	ENTER_DEVICE(device);
	return give_text(gpu->uuid, uuid, length);
}

NVML_API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	ENTER_DEVICE(device);
	return give_text(gpu->name, name, length);
}
