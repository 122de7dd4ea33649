/* SPDX-License-Identifier: Apache-2.0 */
/* The NVLink domain beyond one node, and the node's place in its rack. */
#include <stddef.h>
#include <string.h>

#include "library.h"

NVML_API nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
	ENTER_DEVICE(device);
	if (!info)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (gpu->sm_major < 9)
		return NVML_ERROR_NOT_SUPPORTED;
	*info = (nvmlGpuFabricInfo_t){.cliqueId = gpu->clique,
				      .state = (unsigned char)gpu->fabric_state};
	memcpy(info->clusterUuid, gpu->cluster, sizeof(info->clusterUuid));
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfo_v3_t *info)
{
	ENTER_DEVICE(device);
	const unsigned int version_2 =
	    NVML_STRUCT_VERSION(offsetof(nvmlGpuFabricInfo_v3_t, healthSummary), 2);
	const unsigned int version_3 = NVML_STRUCT_VERSION(sizeof(*info), 3);

	if (!info)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (info->version != version_2 && info->version != version_3)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (gpu->sm_major < 9)
		return NVML_ERROR_NOT_SUPPORTED;
	memcpy(info->clusterUuid, gpu->cluster, sizeof(info->clusterUuid));
	info->status = (nvmlReturn_t)gpu->fabric_status;
	info->cliqueId = gpu->clique;
	info->state = (unsigned char)gpu->fabric_state;
	info->healthMask = 0;
	if (info->version == version_3) {
		const unsigned int healthy = gpu->fabric_state == 3;

		info->healthSummary =
		    (unsigned char)(gpu->fabric_health ? gpu->fabric_health : healthy);
	}
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPlatformInfo(nvmlDevice_t device, nvmlPlatformInfo_v2_t *info)
{
	ENTER_DEVICE(device);
	if (!info)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (info->version != NVML_STRUCT_VERSION(sizeof(*info), 1) &&
	    info->version != NVML_STRUCT_VERSION(sizeof(*info), 2))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (!gpu->chassis[0])
		return NVML_ERROR_NOT_SUPPORTED;
	memset(info->ibGuid, 0, sizeof(info->ibGuid));
	memset(info->chassisSerialNumber, 0, sizeof(info->chassisSerialNumber));
	memcpy(info->chassisSerialNumber, gpu->chassis,
	       strnlen(gpu->chassis, sizeof(info->chassisSerialNumber) - 1));
	info->slotNumber = (char)gpu->slot;
	info->trayIndex = (char)gpu->tray;
	info->hostId = (char)gpu->host;
	info->peerType = 1;
	info->moduleId = (char)gpu->module;
	return NVML_SUCCESS;
}
