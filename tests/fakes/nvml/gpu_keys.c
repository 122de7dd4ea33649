/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_keys.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "text.h"

enum key_kind { KEY_NUMBER, KEY_REAL, KEY_TEXT };

struct key {
	const char *name;
	enum key_kind kind;
	size_t offset;
};

#define NUMBER(name, member)                                                                       \
	{                                                                                          \
		name, KEY_NUMBER, offsetof(struct gpu, member)                                     \
	}
#define REAL(name, member)                                                                         \
	{                                                                                          \
		name, KEY_REAL, offsetof(struct gpu, member)                                       \
	}
#define TEXT(name, member)                                                                         \
	{                                                                                          \
		name, KEY_TEXT, offsetof(struct gpu, member)                                       \
	}

static const struct key keys[] = {
    TEXT("uuid", uuid),
    TEXT("name", name),
    NUMBER("minor", minor),
    NUMBER("pci-device-id", pci_device_id),
    NUMBER("numa", numa),
    NUMBER("mig", mig),
    NUMBER("mig-devices", mig_devices),
    NUMBER("nvlinks", links),
    NUMBER("nvlink-mbps", nvlink_mbps),
    NUMBER("nvlink-version", nvlink_version),
    NUMBER("fabric-state", fabric_state),
    NUMBER("fabric-status", fabric_status),
    NUMBER("fabric-health", fabric_health),
    NUMBER("c2c-links", c2c_links),
    NUMBER("c2c-mbps", c2c_mbps),
    NUMBER("c2c-down", c2c_down),
    NUMBER("clique", clique),
    TEXT("chassis", chassis),
    NUMBER("slot", slot),
    NUMBER("tray", tray),
    NUMBER("host", host),
    NUMBER("module", module),
    NUMBER("memory", memory_mib),
    NUMBER("used", used_mib),
    NUMBER("cores", cores),
    NUMBER("memory-limits", memory_limits),
    NUMBER("reserved", reserved_mib),
    NUMBER("util", util),
    NUMBER("mem-util", mem_util),
    NUMBER("sm-clock", clock_sm),
    NUMBER("mem-clock", clock_mem),
    NUMBER("sm-clock-max", clock_sm_max),
    NUMBER("mem-clock-max", clock_mem_max),
    NUMBER("power-mw", power_mw),
    NUMBER("power-limit-mw", power_limit_mw),
    NUMBER("temp", temp),
    NUMBER("mem-temp", mem_temp),
    NUMBER("throttle", throttle),
    NUMBER("compute-mode", compute_mode),
    NUMBER("ecc-corrected", ecc_corrected),
    NUMBER("ecc-uncorrected", ecc_uncorrected),
    NUMBER("remapped-corrected", remapped_corrected),
    NUMBER("remapped-uncorrected", remapped_uncorrected),
    NUMBER("remap-pending", remap_pending),
    NUMBER("remap-failed", remap_failed),
    REAL("gpm-sm-active", gpm.sm_active),
    REAL("gpm-sm-occupancy", gpm.sm_occupancy),
    REAL("gpm-tensor", gpm.tensor),
    REAL("gpm-dram", gpm.dram),
    REAL("gpm-fp64", gpm.fp64),
    REAL("gpm-fp32", gpm.fp32),
    REAL("gpm-fp16", gpm.fp16),
    REAL("gpm-pcie-tx", gpm.pcie_tx),
    REAL("gpm-pcie-rx", gpm.pcie_rx),
    REAL("gpm-nvlink-rx", gpm.nvlink_rx),
    REAL("gpm-nvlink-tx", gpm.nvlink_tx),
};

void gpu_set_defaults(struct gpu *gpu, unsigned int index)
{
	memset(gpu, 0, sizeof(*gpu));
	gpu->present = true;
	gpu->index = index;
	gpu->minor = index;
	gpu->clock_sm = 210;
	gpu->clock_mem = 405;
	gpu->clock_sm_max = 1980;
	gpu->clock_mem_max = 2619;
	gpu->power_mw = 60000;
	gpu->power_limit_mw = 300000;
	gpu->temp = 35;
	gpu->mem_temp = 40;
	gpu->throttle = 1; /* idle */
}

static bool set_sm(struct gpu *gpu, const char *value)
{
	int used = 0;

	return sscanf(value, "%u.%u%n", &gpu->sm_major, &gpu->sm_minor, &used) == 2 && !value[used];
}

static bool set_lost(struct gpu *gpu, const char *value)
{
	unsigned int lost;

	if (!text_number(value, &lost))
		return false;
	gpu->lost = lost;
	return true;
}

/* Keys that a plain store does not serve. */
static bool set_special(struct gpu *gpu, const char *key, const char *value, bool *known)
{
	*known = true;
	if (strcmp(key, "pci") == 0)
		return text_pci(value, &gpu->pci);
	if (strcmp(key, "pcie") == 0)
		return text_pcie_place(value, gpu->pcie);
	if (strcmp(key, "cpus") == 0)
		return text_cpus(value, gpu->cpus);
	if (strcmp(key, "cluster") == 0)
		return text_uuid_bytes(value, gpu->cluster);
	if (strcmp(key, "sm") == 0)
		return set_sm(gpu, value);
	if (strcmp(key, "lost") == 0)
		return set_lost(gpu, value);
	*known = false;
	return false;
}

static bool set_plain(struct gpu *gpu, const struct key *key, const char *value)
{
	char *const place = (char *)gpu + key->offset;

	switch (key->kind) {
	case KEY_NUMBER:
		return text_number(value, (unsigned int *)(void *)place);
	case KEY_REAL:
		return text_real(value, (double *)(void *)place);
	case KEY_TEXT:
		return snprintf(place, TEXT_SIZE, "%s", value) < TEXT_SIZE;
	}
	return false;
}

enum gpu_key_result gpu_set(struct gpu *gpu, const char *key, const char *value)
{
	bool known;
	bool set = set_special(gpu, key, value, &known);

	for (unsigned int i = 0; !known && i < sizeof(keys) / sizeof(*keys); i++) {
		if (strcmp(key, keys[i].name) == 0) {
			known = true;
			set = set_plain(gpu, &keys[i], value);
		}
	}
	if (!known)
		return GPU_KEY_UNKNOWN;
	/* Loops over a GPU's links must stay inside its array, whatever a file says. */
	if (gpu->links > MAX_LINKS) {
		gpu->links = 0;
		return GPU_KEY_BAD_VALUE;
	}
	return set ? GPU_KEY_SET : GPU_KEY_BAD_VALUE;
}
