/* SPDX-License-Identifier: Apache-2.0 */
#include "process.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "driver/driver.h"

struct process process;
static struct slot nowhere;

void process_open_slowly(void)
{
	int before = PROCESS_NEW, cancelled;

	/* A thread that died in here would leave the others waiting. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelled);
	if (atomic_compare_exchange_strong(&process.state, &before, PROCESS_OPENING)) {
		words_open(&process.words);
		process.own = &nowhere;
		if (process.words.count) {
			word_take_place(&process.words.word[0]);
			process.own = process.words.word[0].own;
			leave_on_signals();
		}
		atomic_store_explicit(&process.state, PROCESS_OPEN, memory_order_release);
	}
	pthread_setcancelstate(cancelled, NULL);
	while (atomic_load(&process.state) == PROCESS_OPENING)
		sched_yield();
}

bool variable_set(_Atomic int *known, const char *name)
{
	enum { NO = 1, YES };

	if (!*known) {
		const char *value = getenv(name);

		*known = value && !strcmp(value, "1") ? YES : NO;
	}
	return *known == YES;
}

CUdevice current_device(void)
{
	static CUresult (*_Atomic ask)(CUdevice *);
	CUdevice device = 0;

	if (!ask)
		atomic_store(&ask, (CUresult(*)(CUdevice *))driver_symbol("cuCtxGetDevice"));
	return ask && !ask(&device) ? device : -1;
}

static void write_uuid(char *text, size_t size, const CUuuid *uuid)
{
	const unsigned char *b = uuid->bytes;

	snprintf(text, size,
		 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
		 b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
		 b[14], b[15]);
}

static struct word *find_word(CUdevice device)
{
	CUresult (*ask)(CUuuid *, CUdevice) =
	    (CUresult(*)(CUuuid *, CUdevice))driver_symbol("cuDeviceGetUuid");
	char text[64] = "";
	CUuuid uuid;

	if (ask && !ask(&uuid, device))
		write_uuid(text, sizeof(text), &uuid);
	for (unsigned int i = 0; i < process.words.count; i++)
		if (!strcasecmp(process.words.word[i].uuid, text))
			return &process.words.word[i];
	/* A slice of a GPU has a name of its own: then the order of the words tells. */
	if ((unsigned int)device < process.words.count)
		return &process.words.word[device];
	return NULL;
}

struct word *word_of_device(CUdevice device)
{
	struct word *word;

	process_open();
	if (device < 0 || device >= DEVICES_MAX)
		return NULL;
	word = atomic_load(&process.by_device[device]);
	if (!word && process.words.count) {
		word = find_word(device);
		if (word)
			word_take_place(word);
		atomic_store(&process.by_device[device], word);
	}
	return word;
}
