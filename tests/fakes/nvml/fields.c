/* SPDX-License-Identifier: Apache-2.0 */
/* nvmlDeviceGetFieldValues: many numbers with one call, each with an error of its own. */
#include "library.h"
#include "topology.h"

enum {
	FIELD_POWER_CAP_NS = 74,
	FIELD_MEMORY_TEMP = 82,
	FIELD_ENERGY_MJ = 83,
	FIELD_NVLINK_MBPS = 90,
	FIELD_NVLINK_COUNT = 91,
	FIELD_NVLINK_REMOTE_LINK = 146,
	FIELD_LINK_MBPS = 164,
	FIELD_LINK_STATE = 165,
	FIELD_LINK_VERSION = 166,
	FIELD_C2C_COUNT = 170,
	FIELD_C2C_STATUS = 171,
	FIELD_C2C_MBPS = 172,
	FIELD_POWER_AVERAGE = 185,
	FIELD_POWER_INSTANT = 186,
	FIELD_SW_THERMAL_NS = 269,
	FIELD_HW_THERMAL_NS = 270,
	FIELD_POWER_BRAKE_NS = 271,
};

static void give_uint(nvmlFieldValue_t *field, unsigned int value)
{
	field->valueType = NVML_VALUE_UINT;
	field->value.uiVal = value;
}

static void give_ull(nvmlFieldValue_t *field, unsigned long long value)
{
	field->valueType = NVML_VALUE_ULONGLONG;
	field->value.ullVal = value;
}

/* Fields 164 to 166 came with Hopper; older GPUs have the calls and the common speed. */
static nvmlReturn_t link_field(const struct gpu *gpu, nvmlFieldValue_t *field)
{
	nvmlReturn_t error;
	const bool up = topology_link_up(gpu, field->scopeId, &error);

	if (gpu->sm_major < 9)
		return NVML_ERROR_NOT_SUPPORTED;
	if (error)
		return error;
	switch (field->fieldId) {
	case FIELD_LINK_STATE:
		give_uint(field, up);
		break;
	case FIELD_LINK_MBPS:
		give_uint(field, up ? gpu->nvlink_mbps : 0);
		break;
	default:
		give_uint(field, gpu->nvlink_version);
	}
	return NVML_SUCCESS;
}

static nvmlReturn_t remote_link(const struct gpu *gpu, nvmlFieldValue_t *field)
{
	const struct link *link = &gpu->link[field->scopeId < gpu->links ? field->scopeId : 0];

	if (!gpu->links)
		return NVML_ERROR_NOT_SUPPORTED;
	if (field->scopeId >= gpu->links || link->end != LINK_GPU)
		return NVML_ERROR_INVALID_ARGUMENT;
	give_uint(field, link->peer_link);
	return NVML_SUCCESS;
}

static nvmlReturn_t chip_to_chip(const struct gpu *gpu, nvmlFieldValue_t *field)
{
	const bool up = field->scopeId + gpu->c2c_down < gpu->c2c_links;

	if (field->fieldId == FIELD_C2C_COUNT) {
		give_uint(field, gpu->c2c_links);
		return NVML_SUCCESS;
	}
	if (!gpu->c2c_links)
		return NVML_ERROR_NOT_SUPPORTED;
	if (field->scopeId >= gpu->c2c_links)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (field->fieldId == FIELD_C2C_STATUS)
		give_uint(field, up);
	else
		give_uint(field, up ? gpu->c2c_mbps : 0);
	return NVML_SUCCESS;
}

static nvmlReturn_t give_field(const struct gpu *gpu, nvmlFieldValue_t *field)
{
	const struct counters *counters = library_counters(gpu);

	switch (field->fieldId) {
	case FIELD_POWER_CAP_NS:
		give_ull(field, counters->power_cap_ns);
		break;
	case FIELD_MEMORY_TEMP:
		give_uint(field, gpu->mem_temp);
		break;
	case FIELD_ENERGY_MJ:
		give_ull(field, counters->energy_uj / 1000);
		break;
	case FIELD_NVLINK_MBPS:
		if (!gpu->links)
			return NVML_ERROR_NOT_SUPPORTED;
		give_uint(field, gpu->nvlink_mbps);
		break;
	case FIELD_NVLINK_COUNT:
		give_uint(field, gpu->links);
		break;
	case FIELD_NVLINK_REMOTE_LINK:
		return remote_link(gpu, field);
	case FIELD_LINK_MBPS:
	case FIELD_LINK_STATE:
	case FIELD_LINK_VERSION:
		return link_field(gpu, field);
	case FIELD_C2C_COUNT:
	case FIELD_C2C_STATUS:
	case FIELD_C2C_MBPS:
		return chip_to_chip(gpu, field);
	case FIELD_POWER_AVERAGE:
	case FIELD_POWER_INSTANT:
		give_uint(field, gpu->power_mw);
		break;
	case FIELD_SW_THERMAL_NS:
		give_ull(field, counters->sw_thermal_ns);
		break;
	case FIELD_HW_THERMAL_NS:
		give_ull(field, counters->hw_thermal_ns);
		break;
	case FIELD_POWER_BRAKE_NS:
		give_ull(field, counters->power_brake_ns);
		break;
	default:
		return NVML_ERROR_NOT_SUPPORTED;
	}
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count,
					       nvmlFieldValue_t *fields)
{
	ENTER_DEVICE(device);
	if (count < 1 || !fields)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; i < count; i++) {
		fields[i].timestamp = (long long)library_now_us();
		fields[i].latencyUsec = 0;
		fields[i].nvmlReturn = give_field(gpu, &fields[i]);
	}
	return NVML_SUCCESS;
}
