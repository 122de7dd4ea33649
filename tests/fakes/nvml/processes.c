/* SPDX-License-Identifier: Apache-2.0 */
/* Who uses a device. */
#include <string.h>

#include "library.h"

#define MIB (1024ULL * 1024ULL)
#define WHOLE_GPU 0xFFFFFFFFU /* no GPU instance, no compute instance */

static nvmlReturn_t give_processes(const struct gpu *gpu, enum process_type type,
				   unsigned int *count, nvmlProcessInfo_t *infos)
{
	const struct machine *machine = library_machine();
	const unsigned int room = count ? *count : 0;
	unsigned int found = 0;

	if (!count || (room && !infos))
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < machine->process_count; i++) {
		const struct process *process = &machine->processes[i];

		if (process->gpu != gpu->index || process->type != type || !process_lives(process))
			continue;
		if (found < room)
			infos[found] = (nvmlProcessInfo_t){process->pid, process->memory_mib * MIB,
							   WHOLE_GPU, WHOLE_GPU};
		found++;
	}
	*count = found;
	return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device,
							      unsigned int *count,
							      nvmlProcessInfo_t *infos)
{
	ENTER_DEVICE(device);
	return give_processes(gpu, PROCESS_COMPUTE, count, infos);
}

NVML_API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device,
								 unsigned int *count,
								 nvmlProcessInfo_t *infos)
{
	ENTER_DEVICE(device);
	return give_processes(gpu, PROCESS_MPS, count, infos);
}

NVML_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device,
							       unsigned int *count,
							       nvmlProcessInfo_t *infos)
{
	ENTER_DEVICE(device);
	return give_processes(gpu, PROCESS_GRAPHICS, count, infos);
}

/* As under a real MPS server, the work of its clients is not told apart. */
static bool has_samples(const struct process *process, const struct gpu *gpu)
{
	return process->gpu == gpu->index && process->type != PROCESS_MPS &&
	       (process->sm || process->mem) && process_lives(process);
}

static unsigned int count_samples(const struct gpu *gpu)
{
	const struct machine *machine = library_machine();
	unsigned int found = 0;

	for (unsigned int i = 0; i < machine->process_count; i++)
		found += has_samples(&machine->processes[i], gpu);
	return found;
}

NVML_API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
						      nvmlProcessUtilizationSample_t *samples,
						      unsigned int *count, unsigned long long since)
{
	ENTER_DEVICE(device);
	const struct machine *machine = library_machine();
	const unsigned long long now = library_now_us();
	const unsigned int found = count_samples(gpu);
	unsigned int next = 0;

	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (gpu->mig)
		return NVML_ERROR_NOT_SUPPORTED;
	if (!found || since >= now)
		return NVML_ERROR_NOT_FOUND;
	if (!samples || *count < found) {
		*count = found;
		return NVML_ERROR_INSUFFICIENT_SIZE;
	}
	for (unsigned int i = 0; i < machine->process_count; i++) {
		const struct process *process = &machine->processes[i];

		if (has_samples(process, gpu))
			samples[next++] = (nvmlProcessUtilizationSample_t){
			    .pid = process->pid,
			    .timeStamp = now,
			    .smUtil = process->sm,
			    .memUtil = process->mem,
			};
	}
	*count = found;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(
    nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *request)
{
	ENTER_DEVICE(device);
	const struct machine *machine = library_machine();
	const unsigned long long now = library_now_us();
	const unsigned int found = count_samples(gpu);
	unsigned int next = 0;

	if (!request)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (request->version != NVML_STRUCT_VERSION(sizeof(*request), 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (gpu->mig)
		return NVML_ERROR_NOT_SUPPORTED;
	if (!found || request->lastSeenTimeStamp >= now)
		return NVML_ERROR_NOT_FOUND;
	if (!request->procUtilArray || request->processSamplesCount < found) {
		request->processSamplesCount = found;
		return NVML_ERROR_INSUFFICIENT_SIZE;
	}
	for (unsigned int i = 0; i < machine->process_count; i++) {
		const struct process *process = &machine->processes[i];

		if (has_samples(process, gpu))
			request->procUtilArray[next++] = (nvmlProcessUtilizationInfo_v1_t){
			    .timeStamp = now,
			    .pid = process->pid,
			    .smUtil = process->sm,
			    .memUtil = process->mem,
			};
	}
	request->processSamplesCount = found;
	return NVML_SUCCESS;
}

static unsigned int whole_mib(unsigned long long bytes)
{
	return bytes / MIB >= NO_LIMIT ? NO_LIMIT : (unsigned int)(bytes / MIB);
}

/* A cgroup as a word of the live file. */
static bool is_word(const char *text)
{
	return text && *text == '/' && !strpbrk(text, " \t\n#\"");
}

NVML_API nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device,
						   const nvmlSetMemoryLimits_v1_t *limits)
{
	ENTER_DEVICE(device);
	if (!gpu->memory_limits)
		return NVML_ERROR_NOT_SUPPORTED;
	if (!limits || !is_word(limits->nameSpace))
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!library_tell_all("limit %u %s %u %u\n", gpu->index, limits->nameSpace,
			      whole_mib(limits->softLimit), whole_mib(limits->hardLimit)))
		return NVML_ERROR_NO_PERMISSION;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device,
						   nvmlGetMemoryLimits_v1_t *limits)
{
	ENTER_DEVICE(device);
	const struct machine *machine = library_machine();

	if (!gpu->memory_limits)
		return NVML_ERROR_NOT_SUPPORTED;
	if (!limits || !is_word(limits->nameSpace))
		return NVML_ERROR_INVALID_ARGUMENT;
	limits->softLimit = limits->currentUsed = 0;
	limits->hardLimit = ~0ULL;
	for (unsigned int i = 0; i < machine->limit_count; i++) {
		const struct memory_limit *limit = &machine->limits[i];

		if (limit->gpu != gpu->index || strcmp(limit->cgroup, limits->nameSpace) != 0)
			continue;
		limits->softLimit = limit->soft_mib * MIB;
		if (limit->hard_mib != NO_LIMIT)
			limits->hardLimit = limit->hard_mib * MIB;
	}
	return NVML_SUCCESS;
}
