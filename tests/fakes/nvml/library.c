/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine in memory. It is made from the machine file by the first nvmlInit; lines appended to
 * the live file beside it (same name with ".live") are read at the next call, so that a test can
 * change the machine under a running program.
 */
#include "library.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_MACHINE_FILE "/etc/berth-fake/machine"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int users;
static struct machine machine;
static struct counters counters[MAX_GPUS];
static unsigned long long counted_ns;
static struct live_file {
	char path[4096];
	ino_t inode;
	off_t read;
	unsigned int line;
} live;

static unsigned long long now_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (unsigned long long)now.tv_sec * 1000000000ULL + (unsigned long long)now.tv_nsec;
}

unsigned long long library_now_us(void)
{
	return now_ns(CLOCK_REALTIME) / 1000;
}

const struct machine *library_machine(void)
{
	return &machine;
}

const struct counters *library_counters(const struct gpu *gpu)
{
	return &counters[gpu->index];
}

static const char *machine_path(void)
{
	const char *path = getenv("BERTH_FAKE_NVML");

	return path && *path ? path : DEFAULT_MACHINE_FILE;
}

static void ignore_event(unsigned int gpu, unsigned long long type, unsigned long long data)
{
	(void)gpu;
	(void)type;
	(void)data;
}

static nvmlReturn_t load_machine(void)
{
	static struct machine fresh;
	const char *path = machine_path();
	char line[2048], problem[256];
	unsigned int number = 0;
	FILE *file = fopen(path, "re");
	bool good = true;

	if (!file) {
		fprintf(stderr, "%s:0: cannot open the machine file: %m\n", path);
		return NVML_ERROR_DRIVER_NOT_LOADED;
	}
	fresh = (struct machine){.driver = "550.54.15", .nvml = "12.550.54.15", .cuda = 12040};
	while (good && fgets(line, sizeof(line), file)) {
		number++;
		good = machine_apply(&fresh, line, ignore_event, problem, sizeof(problem));
	}
	fclose(file);
	good = good && machine_check(&fresh, problem, sizeof(problem));
	if (!good) {
		fprintf(stderr, "%s:%u: %s\n", path, number, problem);
		return NVML_ERROR_UNKNOWN;
	}
	machine = fresh;
	return NVML_SUCCESS;
}

/* Only whole lines count: the last one may still be in the writer's hands. */
static void read_live(void)
{
	char line[2048], problem[256];
	FILE *file = fopen(live.path, "re");

	if (!file)
		return;
	fseeko(file, live.read, SEEK_SET);
	while (fgets(line, sizeof(line), file) && strchr(line, '\n')) {
		live.read = ftello(file);
		live.line++;
		if (!machine_apply(&machine, line, events_record, problem, sizeof(problem)))
			fprintf(stderr, "%s:%u: %s\n", live.path, live.line, problem);
	}
	fclose(file);
}

static void refresh(void);

bool library_tell_all(const char *format, ...)
{
	char line[2048];
	va_list arguments;
	int length, file;
	bool written;

	va_start(arguments, format);
	length = vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	file = open(live.path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	written = file >= 0 && write(file, line, (size_t)length) == length;
	if (file >= 0)
		close(file);
	/* What was told is read back at once, like everything that others tell. */
	if (written)
		refresh();
	return written;
}

static void refresh(void)
{
	struct stat status;

	if (stat(live.path, &status) != 0)
		return;
	/* A shorter or another file starts a new story on the machine as it was written. */
	if (status.st_size < live.read || status.st_ino != live.inode) {
		if (live.read && load_machine() != NVML_SUCCESS)
			return;
		live.inode = status.st_ino;
		live.read = 0;
		live.line = 0;
	}
	if (status.st_size > live.read)
		read_live();
}

static void count(void)
{
	const unsigned long long now = now_ns(CLOCK_MONOTONIC);
	const unsigned long long passed = counted_ns ? now - counted_ns : 0;

	counted_ns = now;
	for (unsigned int i = 0; i < machine.gpu_count; i++) {
		const struct gpu *gpu = &machine.gpus[i];

		counters[i].energy_uj += passed / 1000 * gpu->power_mw / 1000;
		counters[i].power_cap_ns += gpu->throttle & 0x4 ? passed : 0;
		counters[i].sw_thermal_ns += gpu->throttle & 0x20 ? passed : 0;
		counters[i].hw_thermal_ns += gpu->throttle & 0x40 ? passed : 0;
		counters[i].power_brake_ns += gpu->throttle & 0x80 ? passed : 0;
	}
}

static nvmlReturn_t refusal(const char *call)
{
	for (unsigned int i = 0; i < machine.refusal_count; i++) {
		if (strcmp(machine.refusals[i].call, call) == 0)
			return machine.refusals[i].error;
	}
	return NVML_SUCCESS;
}

struct entry library_enter(const char *call)
{
	struct entry entry = {NVML_ERROR_UNINITIALIZED, NULL};

	pthread_mutex_lock(&lock);
	if (!users)
		return entry;
	count();
	refresh();
	entry.error = refusal(call);
	return entry;
}

struct entry library_enter_device(const char *call, nvmlDevice_t device)
{
	struct entry entry = library_enter(call);

	if (entry.error)
		return entry;
	if (device < machine.gpus || device >= machine.gpus + machine.gpu_count)
		entry.error = NVML_ERROR_INVALID_ARGUMENT;
	else if (device->lost)
		entry.error = NVML_ERROR_GPU_IS_LOST;
	else
		entry.gpu = device;
	return entry;
}

void library_leave(struct entry *entry)
{
	(void)entry;
	pthread_mutex_unlock(&lock);
}

static nvmlReturn_t init(void)
{
	nvmlReturn_t result = NVML_SUCCESS;

	pthread_mutex_lock(&lock);
	if (!users) {
		live = (struct live_file){0};
		snprintf(live.path, sizeof(live.path), "%s.live", machine_path());
		result = load_machine();
		if (result == NVML_SUCCESS)
			refresh();
	}
	if (result == NVML_SUCCESS)
		users++;
	pthread_mutex_unlock(&lock);
	return result;
}

NVML_API nvmlReturn_t nvmlInit_v2(void)
{
	return init();
}

NVML_API nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	(void)flags;
	return init();
}

NVML_API nvmlReturn_t nvmlShutdown(void)
{
	ENTER();
	users--;
	return NVML_SUCCESS;
}
