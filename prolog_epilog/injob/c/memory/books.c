/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/books.h"

#include <string.h>
#include <sys/mman.h>

#define ROOMS (1u << 18)
#define PROBES 4096u
enum { EMPTY = 0, BUSY = 1, STRUCK = 2 };

static struct holding holdings[ROOMS] __attribute__((aligned(4096)));
static _Atomic bool noted;

/* Names are pointers and handles, so the kind fits into the bits that they never use. */
static uint64_t key_of(enum kind kind, uint64_t name)
{
	return name ^ ((uint64_t)kind << 59);
}

static unsigned int first_room(uint64_t key)
{
	return (unsigned int)((key * 0x9e3779b97f4a7c15ULL) >> 46) & (ROOMS - 1);
}

/* What other living processes of the job hold; the dead hold nothing. */
static uint64_t held_by_others(const struct word *word, bool ask_who_lives)
{
	uint64_t sum = 0;

	for (unsigned int slot = 1; word->slots && slot < SLOTS; slot++) {
		const struct slot *other = &word->slots[slot];

		if (other == word->own || !(atomic_load(&other->process) & SLOT_LIBRARY))
			continue;
		if (!ask_who_lives || word_slot_lives(word, slot))
			sum += atomic_load(&other->used);
	}
	return sum;
}

static void raise_peak(struct slot *slot, uint64_t used)
{
	uint64_t peak = atomic_load(&slot->peak);

	while (used > peak && !atomic_compare_exchange_weak(&slot->peak, &peak, used))
		;
}

bool books_reserve(CUdevice device, uint64_t size)
{
	struct word *word = word_of_device(device);
	uint64_t used, quota;

	if (!word)
		return true;
	quota = atomic_load(&word->order->quota);
	/* Booked before it is judged: two threads can then both be refused, never both be let in.
	 */
	used = atomic_fetch_add(&word->own->used, size) + size;
	if (quota && (size > quota || (used + held_by_others(word, false) > quota &&
				       used + held_by_others(word, true) > quota))) {
		atomic_fetch_sub(&word->own->used, size);
		atomic_fetch_add(&word->own->refused, 1);
		return false;
	}
	raise_peak(word->own, used);
	return true;
}

void books_add(CUdevice device, uint64_t size)
{
	struct word *word = word_of_device(device);

	if (word)
		raise_peak(word->own, atomic_fetch_add(&word->own->used, size) + size);
}

void books_release(CUdevice device, uint64_t size)
{
	struct word *word = word_of_device(device);

	if (word)
		atomic_fetch_sub(&word->own->used, size);
}

bool books_left(CUdevice device, uint64_t *left, uint64_t *quota)
{
	struct word *word = word_of_device(device);
	uint64_t used;

	*quota = word ? atomic_load(&word->order->quota) : 0;
	if (!*quota)
		return false;
	used = atomic_load(&word->own->used) + held_by_others(word, true);
	*left = used < *quota ? *quota - used : 0;
	return true;
}

bool books_note(enum kind kind, uint64_t name, CUdevice device, uint64_t size, uint64_t uses)
{
	uint64_t key = key_of(kind, name), found;

	atomic_store_explicit(&noted, true, memory_order_relaxed);
	for (unsigned int probe = 0; probe < PROBES; probe++) {
		struct holding *room = &holdings[(first_room(key) + probe) % ROOMS];

		found = atomic_load(&room->key);
		if ((found != EMPTY && found != STRUCK) ||
		    !atomic_compare_exchange_strong(&room->key, &found, BUSY))
			continue;
		room->kind = kind;
		room->size = size;
		room->device = device;
		atomic_store(&room->uses, uses);
		room->context = context_current_made();
		atomic_store(&room->key, key);
		return true;
	}
	return false;
}

struct holding *books_find(enum kind kind, uint64_t name)
{
	uint64_t key = key_of(kind, name);

	for (unsigned int probe = 0; probe < PROBES; probe++) {
		struct holding *room = &holdings[(first_room(key) + probe) % ROOMS];
		uint64_t found = atomic_load(&room->key);

		if (found == key)
			return room;
		if (found == EMPTY)
			return NULL;
	}
	return NULL;
}

bool books_strike(enum kind kind, uint64_t name, struct holding *struck)
{
	struct holding *room = books_find(kind, name);
	uint64_t key = key_of(kind, name);

	if (!room)
		return false;
	struck->size = room->size;
	struck->device = room->device;
	struck->context = room->context;
	atomic_store(&struck->uses, atomic_load(&room->uses));
	return atomic_compare_exchange_strong(&room->key, &key, STRUCK);
}

void books_context_gone(CUcontext context, CUdevice device)
{
	for (unsigned int i = 0; i < ROOMS; i++) {
		struct holding *room = &holdings[i];
		uint64_t key = atomic_load(&room->key);

		/* Physical memory and its mappings belong to no context. */
		if (key <= STRUCK || room->kind == HANDLE || room->kind == MAPPING ||
		    room->context != context || (!context && room->device != device))
			continue;
		if (atomic_compare_exchange_strong(&room->key, &key, STRUCK))
			books_release(room->device, room->size);
	}
}

void books_forget(void)
{
	if (!atomic_exchange(&noted, false))
		return;
	/* Private memory that is given back reads as zeros. */
	if (madvise(holdings, sizeof(holdings), MADV_DONTNEED))
		memset((void *)holdings, 0, sizeof(holdings));
}
