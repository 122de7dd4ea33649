/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard says on the owner's page how much its guest holds. An allocation that lacks more than
 * that fails at once: frameworks rely on it, and free their caches then. Else it tells the guard
 * what it lacks, the guard ends the guest, and the allocation is tried again.
 */
#include "memory/retry.h"

#include <time.h>

#include "driver/hooks.h"

#define MS 1000000ULL
/* A guest is gone by then; a driver that frees its memory later is not waited for. */
#define LONGEST_WAIT (5000 * MS)
#define PAUSE (2 * MS)

static bool wanted(void)
{
	static _Atomic int known;

	return variable_set(&known, "BERTH_MEMORY_RETRY");
}

/* Nothing where the guard is gone. */
static uint64_t held_by_guest(const struct word *word)
{
	return atomic_load(&word->order->until) >= now_ns() ? atomic_load(&word->order->guest) : 0;
}

static uint64_t lacking(uint64_t size)
{
	size_t left, total;

	if (!REAL(cuMemGetInfo_v2) || REAL(cuMemGetInfo_v2)(&left, &total) || left >= size)
		return size;
	return size - left;
}

static bool begin(struct retry *retry, CUdevice device, uint64_t size)
{
	struct word *word = wanted() ? word_of_device(device) : NULL;
	uint64_t lacks = word ? lacking(size) : 0;

	if (!word || held_by_guest(word) < lacks)
		return false;
	*retry = (struct retry){word, now_ns() + LONGEST_WAIT, lacks, false};
	atomic_fetch_add(&word->own->lacking, lacks);
	return true;
}

bool retry_wait(struct retry *retry, CUdevice device, uint64_t size)
{
	struct timespec pause = {0, PAUSE};

	if (!retry->word && !begin(retry, device, size))
		return false;
	if (retry->last || now_ns() >= retry->until)
		return false;
	clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
	retry->last = !held_by_guest(retry->word);
	return true;
}

void retry_end(struct retry *retry)
{
	if (retry->word)
		atomic_fetch_sub(&retry->word->own->lacking, retry->lacking);
}

uint64_t retry_room(CUdevice device)
{
	struct word *word = wanted() ? word_of_device(device) : NULL;

	return word ? held_by_guest(word) : 0;
}
