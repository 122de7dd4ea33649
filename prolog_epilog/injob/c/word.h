/* SPDX-License-Identifier: Apache-2.0 */
/* The word between guard and job, berth-word/1: docs/develop/formats.md has the layout. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define WORDS_MAX 16
#define DUTY_OPEN 1000

/* Written by the guard alone; a job can only read it. */
struct order {
	uint64_t magic;
	_Atomic uint64_t duty; /* low 16 bits: permille; high 32 bits: epoch */
	_Atomic uint64_t memory;
	_Atomic uint64_t host_bound;
	_Atomic uint64_t until; /* CLOCK_MONOTONIC, ns: after it everything is open */
	_Atomic uint64_t quota;
	_Atomic uint64_t guest; /* to an owner: bytes that its guest holds and would lose */
};

/* One process's part of the beat. */
struct slot {
	_Atomic uint64_t process; /* pid, and SLOT_LIBRARY */
	_Atomic uint64_t ready, at, steps, step_ns, idle_ns, launches, used, peak, spilled, epoch;
	_Atomic uint64_t refused, unknown;
	uint64_t unused[3];
	_Atomic uint32_t recent_us[16];
	uint64_t gone[2];	  /* of an earlier release */
	_Atomic uint64_t lacking; /* bytes that an owner waits for */
	uint64_t rest[5];
};

#define SLOT_LIBRARY (1ULL << 32)
#define SLOT_BYTES 256
#define SLOTS 16
_Static_assert(sizeof(struct slot) == SLOT_BYTES, "a slot has 256 bytes");

struct word {
	char uuid[64];
	const struct order *order;
	struct slot *slots; /* the whole page; NULL: no beat */
	struct slot *own;   /* never NULL */
	bool placed;	    /* `own` is on the page */
	int beat;	    /* descriptor that holds the lock on `own`; -1: none */
};

struct words {
	unsigned int count;
	struct word word[WORDS_MAX];
};

uint64_t now_ns(void);
/* Opens what BERTH_WORD names; what cannot be opened is left out. Never fails. */
void words_open(struct words *words);
/* In a child after fork: the parent's places are the parent's. */
void words_forget(struct words *words);
/* Takes a place on the word's beat, so that the guard hears this process. */
void word_take_place(struct word *word);
/* Whether another living process of this library holds the slot; a dead one's is wiped. */
bool word_slot_lives(const struct word *word, unsigned int slot);
/* The strictest duty of all words, in permille. */
unsigned int words_duty(const struct words *words);

/* The path that every launch takes: one load for each word. */
static inline bool words_all_open(const struct words *words)
{
	for (unsigned int i = 0; i < words->count; i++)
		if ((atomic_load_explicit(&words->word[i].order->duty, memory_order_relaxed) &
		     0xffff) != DUTY_OPEN)
			return false;
	return true;
}
