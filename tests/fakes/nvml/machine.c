/* SPDX-License-Identifier: Apache-2.0 */
/* Statements of the machine file and the live file; README.md lists them. */
#include "machine.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "gpu_keys.h"
#include "text.h"

struct statement {
	struct machine *machine;
	struct words *words;
	event_sink on_event;
	char *problem;
	unsigned int problem_size;
};

__attribute__((format(printf, 2, 3))) static bool wrong(struct statement *statement,
							const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(statement->problem, statement->problem_size, format, arguments);
	va_end(arguments);
	return false;
}

static struct gpu *known_gpu(struct statement *statement, const char *text)
{
	unsigned int index;

	if (!text_number(text, &index) || index >= MAX_GPUS ||
	    !statement->machine->gpus[index].present) {
		wrong(statement, "there is no GPU %s", text);
		return NULL;
	}
	return &statement->machine->gpus[index];
}

static bool apply_gpu(struct statement *statement)
{
	struct machine *machine = statement->machine;
	struct words *words = statement->words;
	unsigned int first, last;

	if (!text_range(words->word[1], &first, &last) || last >= MAX_GPUS)
		return wrong(statement, "a GPU's index is 0 to %d, or a range, not %s",
			     MAX_GPUS - 1, words->word[1]);
	if (first > machine->gpu_count)
		return wrong(statement, "GPU %u comes next, not %u: indices have no gaps",
			     machine->gpu_count, first);
	for (; machine->gpu_count <= last; machine->gpu_count++)
		gpu_set_defaults(&machine->gpus[machine->gpu_count], machine->gpu_count);
	for (unsigned int i = 2; i < words->count; i++) {
		const char *value = text_value(words->word[i]);

		for (unsigned int index = first; index <= last; index++) {
			struct gpu *gpu = &machine->gpus[index];

			switch (value ? gpu_set(gpu, words->word[i], value) : GPU_KEY_BAD_VALUE) {
			case GPU_KEY_SET:
				break;
			case GPU_KEY_UNKNOWN:
				return wrong(statement, "a GPU has no \"%s\"", words->word[i]);
			case GPU_KEY_BAD_VALUE:
				return wrong(statement, "cannot read the value of \"%s\"",
					     words->word[i]);
			}
		}
	}
	return true;
}

static bool apply_switch(struct statement *statement)
{
	struct words *words = statement->words;
	unsigned int index;
	char *value;

	if (words->count != 3 || !text_number(words->word[1], &index) || index >= MAX_SWITCHES)
		return wrong(statement, "write: switch INDEX pci=ADDRESS, INDEX 0 to %d",
			     MAX_SWITCHES - 1);
	value = text_value(words->word[2]);
	if (!value || strcmp(words->word[2], "pci") ||
	    !text_pci(value, &statement->machine->switches[index]))
		return wrong(statement, "write: switch INDEX pci=ADDRESS");
	statement->machine->switch_present[index] = true;
	return true;
}

/* "GPU:FIRST[-LAST]" */
static struct gpu *link_range(struct statement *statement, char *text, unsigned int *first,
			      unsigned int *last)
{
	char *colon = strchr(text, ':');
	struct gpu *gpu;

	if (!colon) {
		wrong(statement, "write GPU:LINK or GPU:FIRST-LAST, not %s", text);
		return NULL;
	}
	*colon = '\0';
	gpu = known_gpu(statement, text);
	if (!gpu)
		return NULL;
	if (!text_range(colon + 1, first, last) || *last >= gpu->links) {
		wrong(statement, "GPU %u has NVLinks 0 to %d", gpu->index, (int)gpu->links - 1);
		return NULL;
	}
	return gpu;
}

static bool join_one(struct statement *statement, struct gpu *gpu, unsigned int number,
		     struct link end)
{
	if (gpu->link[number].end != LINK_UNUSED)
		return wrong(statement, "NVLink %u of GPU %u is joined twice", number, gpu->index);
	gpu->link[number] = end;
	return true;
}

static bool join_gpus(struct statement *statement, struct gpu *near, unsigned int first,
		      unsigned int last, char *other)
{
	unsigned int far_first, far_last;
	struct gpu *far = link_range(statement, other, &far_first, &far_last);

	if (!far)
		return false;
	if (far == near || far_last - far_first != last - first)
		return wrong(statement, "an NVLink joins as many links of two different GPUs");
	for (unsigned int i = 0; i <= last - first; i++) {
		struct link forth = {LINK_GPU, far->index, far_first + i, false};
		struct link back = {LINK_GPU, near->index, first + i, false};

		if (!join_one(statement, near, first + i, forth) ||
		    !join_one(statement, far, far_first + i, back))
			return false;
	}
	return true;
}

static bool apply_nvlink(struct statement *statement)
{
	struct words *words = statement->words;
	unsigned int first, last, index;
	struct gpu *gpu;

	if (words->count != 3)
		return wrong(statement,
			     "write: nvlink GPU:LINKS GPU:LINKS|switch:N|hidden|up|down");
	gpu = link_range(statement, words->word[1], &first, &last);
	if (!gpu)
		return false;
	if (strcmp(words->word[2], "up") == 0 || strcmp(words->word[2], "down") == 0) {
		for (unsigned int i = first; i <= last; i++)
			gpu->link[i].down = words->word[2][0] == 'd';
		return true;
	}
	if (strcmp(words->word[2], "hidden") == 0) {
		for (unsigned int i = first; i <= last; i++) {
			if (!join_one(statement, gpu, i, (struct link){.end = LINK_HIDDEN}))
				return false;
		}
		return true;
	}
	if (strncmp(words->word[2], "switch:", 7) != 0)
		return join_gpus(statement, gpu, first, last, words->word[2]);
	if (!text_number(words->word[2] + 7, &index) || index >= MAX_SWITCHES ||
	    !statement->machine->switch_present[index])
		return wrong(statement, "there is no %s", words->word[2]);
	for (unsigned int i = first; i <= last; i++) {
		if (!join_one(statement, gpu, i, (struct link){.end = LINK_SWITCH, .peer = index}))
			return false;
	}
	return true;
}

static bool process_type(const char *text, enum process_type *type)
{
	static const char *const names[] = {"compute", "mps", "graphics"};

	for (unsigned int i = 0; i < 3; i++) {
		if (strcmp(text, names[i]) == 0) {
			*type = (enum process_type)i;
			return true;
		}
	}
	return false;
}

static bool process_set(struct process *process, const char *key, const char *value)
{
	if (strcmp(key, "type") == 0)
		return process_type(value, &process->type);
	if (strcmp(key, "memory") == 0)
		return text_number(value, &process->memory_mib);
	if (strcmp(key, "sm") == 0)
		return text_number(value, &process->sm);
	if (strcmp(key, "mem") == 0)
		return text_number(value, &process->mem);
	if (strcmp(key, "real") == 0)
		return text_number(value, &process->real);
	return false;
}

bool process_lives(const struct process *process)
{
	char path[64], state = 'Z';
	FILE *file;

	if (!process->real)
		return true;
	snprintf(path, sizeof(path), "/proc/%u/stat", process->pid);
	file = fopen(path, "re");
	if (!file)
		return false;
	if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
		state = 'Z';
	fclose(file);
	/* The dead do not count, even where nobody has buried them. */
	return state != 'Z' && state != 'X';
}

static void forget_the_dead(struct machine *machine)
{
	for (unsigned int i = machine->process_count; i-- > 0;) {
		if (!process_lives(&machine->processes[i]))
			machine->processes[i] = machine->processes[--machine->process_count];
	}
}

static struct process *process_find(struct machine *machine, unsigned int gpu, unsigned int pid)
{
	for (unsigned int i = 0; i < machine->process_count; i++) {
		if (machine->processes[i].gpu == gpu && machine->processes[i].pid == pid)
			return &machine->processes[i];
	}
	return NULL;
}

/* process GPU PID key=value... starts or changes one, process GPU PID gone ends it. */
static bool apply_process(struct statement *statement)
{
	struct machine *machine = statement->machine;
	struct words *words = statement->words;
	struct gpu *gpu = known_gpu(statement, words->word[1]);
	struct process *process;
	unsigned int pid;

	if (!gpu)
		return false;
	if (words->count < 3 || !text_number(words->word[2], &pid))
		return wrong(statement, "write: process GPU PID key=value...|gone");
	process = process_find(machine, gpu->index, pid);
	if (words->count == 4 && strcmp(words->word[3], "gone") == 0) {
		if (!process)
			return wrong(statement, "GPU %u runs no process %u", gpu->index, pid);
		*process = machine->processes[--machine->process_count];
		return true;
	}
	if (!process) {
		if (machine->process_count == MAX_PROCESSES)
			forget_the_dead(machine);
		if (machine->process_count == MAX_PROCESSES)
			return wrong(statement, "more than %d processes", MAX_PROCESSES);
		process = &machine->processes[machine->process_count++];
		*process = (struct process){.gpu = gpu->index, .pid = pid};
	}
	for (unsigned int i = 3; i < words->count; i++) {
		char *value = text_value(words->word[i]);

		if (!value || !process_set(process, words->word[i], value))
			return wrong(statement, "cannot read \"%s\" of a process", words->word[i]);
	}
	return true;
}

/* limit GPU CGROUP SOFT HARD, in MiB */
static bool apply_limit(struct statement *statement)
{
	struct machine *machine = statement->machine;
	struct words *words = statement->words;
	struct gpu *gpu = known_gpu(statement, words->word[1]);
	struct memory_limit limit = {0};
	unsigned int i = 0;

	if (!gpu)
		return false;
	if (words->count != 5 || strlen(words->word[2]) >= sizeof(limit.cgroup) ||
	    !text_number(words->word[3], &limit.soft_mib) ||
	    !text_number(words->word[4], &limit.hard_mib))
		return wrong(statement, "write: limit GPU CGROUP SOFT HARD");
	limit.gpu = gpu->index;
	strcpy(limit.cgroup, words->word[2]);
	while (i < machine->limit_count && (machine->limits[i].gpu != limit.gpu ||
					    strcmp(machine->limits[i].cgroup, limit.cgroup) != 0))
		i++;
	if (i == MAX_LIMITS)
		return wrong(statement, "more than %d limits", MAX_LIMITS);
	if (i == machine->limit_count)
		machine->limit_count++;
	machine->limits[i] = limit;
	return true;
}

static bool apply_event(struct statement *statement)
{
	struct words *words = statement->words;
	const bool xid = strcmp(words->word[0], "xid") == 0;
	struct gpu *gpu = known_gpu(statement, words->word[1]);
	unsigned int code = 0;

	if (!gpu)
		return false;
	if (xid && (words->count != 3 || !text_number(words->word[2], &code)))
		return wrong(statement, "write: xid GPU CODE");
	statement->on_event(gpu->index, xid ? NVML_EVENT_XID : NVML_EVENT_DOUBLE_BIT_ECC, code);
	return true;
}

static bool apply_refuse(struct statement *statement)
{
	static const struct {
		const char *name;
		nvmlReturn_t error;
	} errors[] = {
	    {"invalid-argument", NVML_ERROR_INVALID_ARGUMENT},
	    {"not-supported", NVML_ERROR_NOT_SUPPORTED},
	    {"no-permission", NVML_ERROR_NO_PERMISSION},
	    {"function-not-found", NVML_ERROR_FUNCTION_NOT_FOUND},
	    {"unknown", NVML_ERROR_UNKNOWN},
	};
	struct machine *machine = statement->machine;
	struct words *words = statement->words;

	if (words->count != 3 || machine->refusal_count == MAX_REFUSALS)
		return wrong(statement, "write: refuse CALL ERROR, at most %d times", MAX_REFUSALS);
	for (unsigned int i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
		if (strcmp(words->word[2], errors[i].name) == 0) {
			struct refusal *refusal = &machine->refusals[machine->refusal_count++];

			snprintf(refusal->call, sizeof(refusal->call), "%s", words->word[1]);
			refusal->error = errors[i].error;
			return true;
		}
	}
	return wrong(statement, "there is no error \"%s\"", words->word[2]);
}

static bool apply_setting(struct statement *statement)
{
	struct machine *machine = statement->machine;
	const char *name = statement->words->word[0], *value = statement->words->word[1];

	if (strcmp(name, "driver") == 0) {
		snprintf(machine->driver, sizeof(machine->driver), "%s", value);
		return true;
	}
	if (strcmp(name, "nvml") == 0) {
		snprintf(machine->nvml, sizeof(machine->nvml), "%s", value);
		return true;
	}
	return text_number(value, &machine->cuda) || wrong(statement, "write: cuda NUMBER");
}

bool machine_apply(struct machine *machine, const char *line, event_sink on_event, char *problem,
		   unsigned int problem_size)
{
	static const struct {
		const char *name;
		bool (*apply)(struct statement *statement);
	} statements[] = {
	    {"driver", apply_setting},	{"nvml", apply_setting},  {"cuda", apply_setting},
	    {"gpu", apply_gpu},		{"switch", apply_switch}, {"nvlink", apply_nvlink},
	    {"process", apply_process}, {"xid", apply_event},	  {"dbe", apply_event},
	    {"refuse", apply_refuse},	{"limit", apply_limit},
	};
	struct words words;
	struct statement statement = {machine, &words, on_event, problem, problem_size};

	if (!text_split(line, &words))
		return wrong(&statement, "the line is too long or a quote is not closed");
	if (!words.count)
		return true;
	for (unsigned int i = 0; i < sizeof(statements) / sizeof(*statements); i++) {
		if (strcmp(words.word[0], statements[i].name) != 0)
			continue;
		if (words.count < 2)
			return wrong(&statement, "\"%s\" needs a value", words.word[0]);
		return statements[i].apply(&statement);
	}
	return wrong(&statement, "there is no statement \"%s\"", words.word[0]);
}

bool machine_check(const struct machine *machine, char *problem, unsigned int problem_size)
{
	for (unsigned int i = 0; i < machine->gpu_count; i++) {
		const struct gpu *gpu = &machine->gpus[i];

		if (!gpu->uuid[0] || !gpu->name[0] || !gpu->memory_mib) {
			snprintf(problem, problem_size, "GPU %u needs uuid, name and memory", i);
			return false;
		}
		for (unsigned int j = 0; j < i; j++) {
			const struct gpu *other = &machine->gpus[j];

			if (gpu->minor == other->minor || strcmp(gpu->uuid, other->uuid) == 0) {
				snprintf(problem, problem_size,
					 "GPUs %u and %u share a minor number or a uuid", j, i);
				return false;
			}
		}
	}
	return true;
}
