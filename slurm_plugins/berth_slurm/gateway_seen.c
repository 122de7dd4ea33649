/* SPDX-License-Identifier: Apache-2.0 */
#include "berth_slurm/gateway.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct seen_entry {
	uint64_t key;
	uint64_t digest;
	uint32_t round; /* 0: free */
};

/* FNV-1a: a reading has some megabytes at most, and a collision gains nothing. */
static uint64_t digest_of(const struct text *line)
{
	uint64_t digest = 0xcbf29ce484222325u;

	for (size_t i = 0; i < line->len; i++)
		digest = (digest ^ (unsigned char)line->data[i]) * 0x100000001b3u;
	return digest;
}

static struct seen_entry *place_of(struct seen_entry *entries, size_t cap, uint64_t key)
{
	size_t at = (size_t)(key * 0x9e3779b97f4a7c15u >> 20) & (cap - 1);

	while (entries[at].round && entries[at].key != key)
		at = (at + 1) & (cap - 1);
	return &entries[at];
}

/* Into a table of another size, without the entries of earlier rounds where `round` is not 0. */
static void move_entries(struct seen *seen, size_t cap, uint32_t round)
{
	struct seen_entry *entries = calloc(cap, sizeof(*entries));

	if (!entries)
		abort();
	seen->count = 0;
	for (size_t i = 0; i < seen->cap; i++) {
		const struct seen_entry *old = &seen->entries[i];

		if (!old->round || (round && old->round != round))
			continue;
		*place_of(entries, cap, old->key) = *old;
		seen->count++;
	}
	free(seen->entries);
	seen->entries = entries;
	seen->cap = cap;
}

void seen_begin(struct seen *seen)
{
	seen->round++;
}

bool seen_changed(struct seen *seen, uint64_t key, const struct text *line)
{
	uint64_t digest = digest_of(line);
	struct seen_entry *entry;
	bool changed;

	if (2 * (seen->count + 1) > seen->cap)
		move_entries(seen, seen->cap ? 2 * seen->cap : 256, 0);
	entry = place_of(seen->entries, seen->cap, key);
	changed = !entry->round || entry->digest != digest;
	if (!entry->round)
		seen->count++;
	*entry = (struct seen_entry){key, digest, seen->round};
	return changed;
}

void seen_keep(struct seen *seen, uint64_t key)
{
	struct seen_entry *entry = seen->cap ? place_of(seen->entries, seen->cap, key) : NULL;

	if (entry && entry->round)
		entry->round = seen->round;
}

bool seen_end(struct seen *seen, const char *kind)
{
	bool any = false;

	for (size_t i = 0; i < seen->cap; i++) {
		const struct seen_entry *entry = &seen->entries[i];

		if (!entry->round || entry->round == seen->round)
			continue;
		if (kind)
			printf("[\"gone\",\"%s\",%" PRIu64 "]\n", kind, entry->key);
		any = true;
	}
	if (any)
		move_entries(seen, seen->cap, seen->round);
	return any;
}

void seen_free(struct seen *seen)
{
	free(seen->entries);
	*seen = (struct seen){0};
}
