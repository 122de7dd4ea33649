/* SPDX-License-Identifier: Apache-2.0 */
/* GPU performance monitoring (Hopper and newer): two samples give the rates between them. */
#include <stdlib.h>

#include "library.h"

struct gpm_sample {
	bool taken;
	unsigned int gpu;
	struct gpm_values values;
};

NVML_API nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
	ENTER_DEVICE(device);
	if (!support)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (support->version != 1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	support->isSupportedDevice = gpu->sm_major >= 9;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
	ENTER();
	if (!sample)
		return NVML_ERROR_INVALID_ARGUMENT;
	*sample = calloc(1, sizeof(**sample));
	return *sample ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

NVML_API nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
	ENTER();
	if (!sample)
		return NVML_ERROR_INVALID_ARGUMENT;
	free(sample);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
	ENTER_DEVICE(device);
	if (!sample)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (gpu->sm_major < 9)
		return NVML_ERROR_NOT_SUPPORTED;
	*sample = (struct gpm_sample){true, gpu->index, gpu->gpm};
	return NVML_SUCCESS;
}

static nvmlReturn_t give_metric(const struct gpm_values *values, nvmlGpmMetric_t *metric)
{
	switch (metric->metricId) {
	case 2:
		metric->value = values->sm_active;
		break;
	case 3:
		metric->value = values->sm_occupancy;
		break;
	case 5:
		metric->value = values->tensor;
		break;
	case 10:
		metric->value = values->dram;
		break;
	case 11:
		metric->value = values->fp64;
		break;
	case 12:
		metric->value = values->fp32;
		break;
	case 13:
		metric->value = values->fp16;
		break;
	case 20:
		metric->value = values->pcie_tx;
		break;
	case 21:
		metric->value = values->pcie_rx;
		break;
	case 60:
		metric->value = values->nvlink_rx;
		break;
	case 61:
		metric->value = values->nvlink_tx;
		break;
	default:
		return NVML_ERROR_NOT_SUPPORTED;
	}
	return NVML_SUCCESS;
}

/* The machine file states rates, so the later sample alone tells them. */
NVML_API nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *request)
{
	ENTER();
	if (!request || !request->sample1 || !request->sample2 || !request->sample1->taken ||
	    !request->sample2->taken || request->sample1->gpu != request->sample2->gpu)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (request->version != 1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	for (unsigned int i = 0; i < request->numMetrics; i++) {
		nvmlGpmMetric_t *metric = &request->metrics[i];

		metric->nvmlReturn = give_metric(&request->sample2->values, metric);
	}
	return NVML_SUCCESS;
}
