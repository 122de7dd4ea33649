/* SPDX-License-Identifier: Apache-2.0 */
/* Load, memory, clocks, power and health. */
#include "library.h"

#define MIB (1024ULL * 1024ULL)

enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO, CLOCK_KINDS };

static unsigned long long used_bytes(const struct gpu *gpu)
{
	const struct machine *machine = library_machine();
	unsigned long long used = gpu->used_mib;

	for (unsigned int i = 0; i < machine->process_count; i++) {
		if (machine->processes[i].gpu == gpu->index &&
		    process_lives(&machine->processes[i]))
			used += machine->processes[i].memory_mib;
	}
	if (used > gpu->memory_mib - gpu->reserved_mib)
		used = gpu->memory_mib - gpu->reserved_mib;
	return used * MIB;
}

/* The first version counts what the driver keeps for itself as used. */
NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	ENTER_DEVICE(device);
	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	memory->total = gpu->memory_mib * MIB;
	memory->used = used_bytes(gpu) + gpu->reserved_mib * MIB;
	memory->free = memory->total - memory->used;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	ENTER_DEVICE(device);
	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (memory->version != NVML_STRUCT_VERSION(sizeof(*memory), 2))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	memory->total = gpu->memory_mib * MIB;
	memory->reserved = gpu->reserved_mib * MIB;
	memory->used = used_bytes(gpu);
	memory->free = memory->total - memory->used - memory->reserved;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device,
						    nvmlUtilization_t *utilization)
{
	ENTER_DEVICE(device);
	if (!utilization)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (gpu->mig)
		return NVML_ERROR_NOT_SUPPORTED;
	utilization->gpu = gpu->util;
	utilization->memory = gpu->mem_util;
	return NVML_SUCCESS;
}

static nvmlReturn_t give_clock(unsigned int kind, unsigned int sm, unsigned int memory,
			       unsigned int *mhz)
{
	if (!mhz || kind >= CLOCK_KINDS)
		return NVML_ERROR_INVALID_ARGUMENT;
	*mhz = kind == CLOCK_MEMORY ? memory : sm;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int kind,
					     unsigned int *mhz)
{
	ENTER_DEVICE(device);
	return give_clock(kind, gpu->clock_sm, gpu->clock_mem, mhz);
}

NVML_API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int kind,
						unsigned int *mhz)
{
	ENTER_DEVICE(device);
	return give_clock(kind, gpu->clock_sm_max, gpu->clock_mem_max, mhz);
}

NVML_API nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned int kind,
						     unsigned int *mhz)
{
	ENTER_DEVICE(device);
	return give_clock(kind, gpu->clock_sm_max, gpu->clock_mem_max, mhz);
}

NVML_API nvmlReturn_t nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, unsigned int memory,
						      unsigned int graphics)
{
	ENTER_DEVICE(device);
	(void)gpu;
	(void)memory;
	(void)graphics;
	return NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlReturn_t nvmlDeviceResetApplicationsClocks(nvmlDevice_t device)
{
	ENTER_DEVICE(device);
	(void)gpu;
	return NVML_ERROR_NOT_SUPPORTED;
}

/* One supported clock each: the highest. */
static nvmlReturn_t give_clock_list(unsigned int clock, unsigned int *count, unsigned int *clocks)
{
	const unsigned int room = count ? *count : 0;

	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 1;
	if (!room || !clocks)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	clocks[0] = clock;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count,
							 unsigned int *clocks)
{
	ENTER_DEVICE(device);
	return give_clock_list(gpu->clock_mem_max, count, clocks);
}

NVML_API nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory,
							   unsigned int *count,
							   unsigned int *clocks)
{
	ENTER_DEVICE(device);
	if (memory != gpu->clock_mem_max)
		return NVML_ERROR_NOT_FOUND;
	return give_clock_list(gpu->clock_sm_max, count, clocks);
}

static nvmlReturn_t give_reasons(const struct gpu *gpu, unsigned long long *reasons)
{
	if (!reasons)
		return NVML_ERROR_INVALID_ARGUMENT;
	*reasons = gpu->throttle;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device,
							     unsigned long long *reasons)
{
	ENTER_DEVICE(device);
	return give_reasons(gpu, reasons);
}

NVML_API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
								unsigned long long *reasons)
{
	ENTER_DEVICE(device);
	return give_reasons(gpu, reasons);
}

NVML_API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
	ENTER_DEVICE(device);
	if (!milliwatts)
		return NVML_ERROR_INVALID_ARGUMENT;
	*milliwatts = gpu->power_mw;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
	ENTER_DEVICE(device);
	if (!milliwatts)
		return NVML_ERROR_INVALID_ARGUMENT;
	*milliwatts = gpu->power_limit_mw;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device,
							  unsigned long long *millijoules)
{
	ENTER_DEVICE(device);
	if (!millijoules)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (gpu->sm_major < 7)
		return NVML_ERROR_NOT_SUPPORTED;
	*millijoules = library_counters(gpu)->energy_uj / 1000;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor,
					       unsigned int *celsius)
{
	ENTER_DEVICE(device);
	if (!celsius || sensor != 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	*celsius = gpu->temp;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *reading)
{
	ENTER_DEVICE(device);
	if (!reading || reading->sensorType != 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (reading->version != NVML_STRUCT_VERSION(sizeof(*reading), 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	reading->temperature = (int)gpu->temp;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int type,
						  unsigned int counter, unsigned long long *errors)
{
	ENTER_DEVICE(device);
	if (!errors || type > 1 || counter > 1)
		return NVML_ERROR_INVALID_ARGUMENT;
	*errors = type ? gpu->ecc_uncorrected : gpu->ecc_corrected;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected,
						unsigned int *uncorrected, unsigned int *pending,
						unsigned int *failed)
{
	ENTER_DEVICE(device);
	if (!corrected || !uncorrected || !pending || !failed)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (gpu->sm_major < 8 || gpu->mig)
		return NVML_ERROR_NOT_SUPPORTED;
	*corrected = gpu->remapped_corrected;
	*uncorrected = gpu->remapped_uncorrected;
	*pending = gpu->remap_pending;
	*failed = gpu->remap_failed;
	return NVML_SUCCESS;
}
