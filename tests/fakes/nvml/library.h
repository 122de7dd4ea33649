/* SPDX-License-Identifier: Apache-2.0 */
/* What each NVML entry point does first: lock, read what changed, check the device. */
#ifndef FAKE_NVML_LIBRARY_H
#define FAKE_NVML_LIBRARY_H

#include "machine.h"

struct entry {
	nvmlReturn_t error;
	struct gpu *gpu;
};

/* Counters that grow while the library is used. */
struct counters {
	unsigned long long energy_uj;
	unsigned long long power_cap_ns;
	unsigned long long sw_thermal_ns;
	unsigned long long hw_thermal_ns;
	unsigned long long power_brake_ns;
};

struct entry library_enter(const char *call);
struct entry library_enter_device(const char *call, nvmlDevice_t device);
void library_leave(struct entry *entry);

const struct machine *library_machine(void);
const struct counters *library_counters(const struct gpu *gpu);
unsigned long long library_now_us(void);

/* Say a line of the live file, so that every process sees what was set; false where this user may
 * not. */
__attribute__((format(printf, 1, 2))) bool library_tell_all(const char *format, ...);

/* Implemented by events.c; called with the lock held. */
void events_record(unsigned int gpu, unsigned long long type, unsigned long long data);

/* The lock is given back at the end of the calling function, on every way out. */
#define ENTER()                                                                                    \
	__attribute__((cleanup(library_leave))) struct entry entry_ = library_enter(__func__);     \
	if (entry_.error)                                                                          \
	return entry_.error

#define ENTER_DEVICE(device)                                                                       \
	__attribute__((cleanup(library_leave))) struct entry entry_ =                              \
	    library_enter_device(__func__, device);                                                \
	struct gpu *const gpu = entry_.gpu;                                                        \
	if (entry_.error)                                                                          \
	return entry_.error

#endif
