/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated machine: what the machine file and the live file describe. */
#ifndef FAKE_NVML_MACHINE_H
#define FAKE_NVML_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"

#define MAX_GPUS 16
#define MAX_LINKS 36
#define MAX_SWITCHES 32
#define MAX_PROCESSES 128
#define MAX_REFUSALS 32
#define MAX_LIMITS 64
#define NO_LIMIT 0xffffffffU
#define CPU_WORDS 16
#define PCIE_LEVELS 3
#define TEXT_SIZE 96
#define MAX_MIG_DEVICES 7

enum link_end { LINK_UNUSED, LINK_GPU, LINK_SWITCH, LINK_HIDDEN };

struct link {
	enum link_end end;
	unsigned int peer;
	unsigned int peer_link;
	bool down;
};

struct pci_address {
	unsigned int domain;
	unsigned int bus;
	unsigned int device;
	unsigned int function;
};

/* What the GPU's performance monitor would measure, in percent or MiB/s. */
struct gpm_values {
	double sm_active, sm_occupancy, tensor, dram, fp64, fp32, fp16;
	double pcie_tx, pcie_rx, nvlink_rx, nvlink_tx;
};

struct gpu {
	bool present;
	bool lost;
	unsigned int index;
	unsigned int minor;
	char uuid[TEXT_SIZE];
	char name[TEXT_SIZE];
	struct pci_address pci;
	unsigned int pci_device_id;
	unsigned int sm_major, sm_minor;
	unsigned int mig, mig_devices;

	/* Place: NUMA node, then host bridge / upper switch / lower switch below it. */
	unsigned int numa;
	unsigned int pcie[PCIE_LEVELS];
	uint64_t cpus[CPU_WORDS];

	unsigned int links;
	unsigned int nvlink_mbps;
	unsigned int nvlink_version;
	struct link link[MAX_LINKS];

	unsigned int fabric_state, fabric_status, fabric_health;
	unsigned int clique;
	unsigned char cluster[NVML_UUID_BYTES];
	char chassis[TEXT_SIZE];
	unsigned int slot, tray, host, module;

	/* Chip-to-chip links to the CPU; the last ones of them can be down. */
	unsigned int c2c_links, c2c_mbps, c2c_down;

	unsigned int memory_mib, used_mib, reserved_mib;
	unsigned int util, mem_util;
	unsigned int clock_sm, clock_mem, clock_sm_max, clock_mem_max;
	unsigned int power_mw, power_limit_mw;
	unsigned int temp, mem_temp;
	unsigned int throttle;
	unsigned int compute_mode;
	unsigned int cores;
	unsigned int memory_limits; /* whether this driver limits the memory of cgroups */
	unsigned int ecc_corrected, ecc_uncorrected;
	unsigned int remapped_corrected, remapped_uncorrected, remap_pending, remap_failed;
	struct gpm_values gpm;
};

enum process_type { PROCESS_COMPUTE, PROCESS_MPS, PROCESS_GRAPHICS };

struct process {
	unsigned int gpu;
	unsigned int pid;
	enum process_type type;
	unsigned int memory_mib;
	unsigned int sm, mem;
	/* Of this very machine: it counts only as long as it lives. */
	unsigned int real;
};

/* A call that this machine's driver answers with an error, to test its users' robustness. */
struct refusal {
	char call[TEXT_SIZE];
	nvmlReturn_t error;
};

/* What the processes of a cgroup may have of a GPU; NO_LIMIT: all. */
struct memory_limit {
	unsigned int gpu;
	char cgroup[4 * TEXT_SIZE];
	unsigned int soft_mib, hard_mib;
};

struct machine {
	char driver[TEXT_SIZE];
	char nvml[TEXT_SIZE];
	unsigned int cuda;
	unsigned int gpu_count;
	struct gpu gpus[MAX_GPUS];
	bool switch_present[MAX_SWITCHES];
	struct pci_address switches[MAX_SWITCHES];
	unsigned int process_count;
	struct process processes[MAX_PROCESSES];
	unsigned int refusal_count;
	struct refusal refusals[MAX_REFUSALS];
	unsigned int limit_count;
	struct memory_limit limits[MAX_LIMITS];
};

/* An event happens in time, so it is handed out instead of being part of the machine. */
typedef void (*event_sink)(unsigned int gpu, unsigned long long type, unsigned long long data);

/* Apply one line; false leaves a sentence in problem. */
bool machine_apply(struct machine *machine, const char *line, event_sink on_event, char *problem,
		   unsigned int problem_size);

/* A made-up process lives until the file says otherwise. */
bool process_lives(const struct process *process);

/* Whole machine: every link has its other end, every GPU has what a driver always knows. */
bool machine_check(const struct machine *machine, char *problem, unsigned int problem_size);

#endif
