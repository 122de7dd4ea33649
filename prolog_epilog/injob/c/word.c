/* SPDX-License-Identifier: Apache-2.0 */
#include "word.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096

/* The kernel's locks do not keep threads apart that look for a slot: they share the descriptor. */
static pthread_mutex_t placing = PTHREAD_MUTEX_INITIALIZER;

static const struct order *map_order(const char *path)
{
	struct stat found;
	const struct order *order = MAP_FAILED;
	int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

	if (descriptor < 0)
		return NULL;
	if (!fstat(descriptor, &found) && found.st_size == PAGE)
		order = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, descriptor, 0);
	close(descriptor);
	if (order == MAP_FAILED)
		return NULL;
	if (memcmp(&order->magic, "BERTHWD1", 8)) {
		munmap((void *)order, PAGE);
		return NULL;
	}
	return order;
}

/* Such a lock goes with the last descriptor of its file, however the process ends. */
static int slot_lock(int descriptor, int command, unsigned int slot, short *type)
{
	struct flock lock = {.l_type = *type,
			     .l_whence = SEEK_SET,
			     .l_start = slot * SLOT_BYTES,
			     .l_len = SLOT_BYTES};
	int result = fcntl(descriptor, command, &lock);

	*type = lock.l_type;
	return result;
}

static void take_free_slot(struct word *word)
{
	short kind = F_WRLCK;

	for (unsigned int slot = 1; slot < SLOTS; slot++, kind = F_WRLCK) {
		if (slot_lock(word->beat, F_OFD_SETLK, slot, &kind))
			continue;
		memset((void *)&word->slots[slot], 0, SLOT_BYTES);
		word->slots[slot].process = (uint64_t)getpid() | SLOT_LIBRARY;
		word->own = &word->slots[slot];
		word->placed = true;
		return;
	}
}

void word_take_place(struct word *word)
{
	if (!word->slots)
		return;
	pthread_mutex_lock(&placing);
	if (!word->placed)
		take_free_slot(word);
	pthread_mutex_unlock(&placing);
}

bool word_slot_lives(const struct word *word, unsigned int slot)
{
	struct slot *other = &word->slots[slot];
	short kind = F_WRLCK;

	if (!(atomic_load(&other->process) & SLOT_LIBRARY))
		return false;
	if (!slot_lock(word->beat, F_OFD_GETLK, slot, &kind) && kind == F_UNLCK) {
		atomic_store(&other->process, 0);
		atomic_store(&other->used, 0);
		return false;
	}
	return true;
}

static void open_word(struct words *words, const char *base, size_t length)
{
	/* Counts in vain, where there is no place on the page. */
	static struct slot nowhere[WORDS_MAX];
	struct word *word = &words->word[words->count];
	char path[1024];
	const char *name;

	if (snprintf(path, sizeof(path), "%.*s.order", (int)length, base) >= (int)sizeof(path))
		return;
	word->order = map_order(path);
	if (!word->order)
		return;
	name = memrchr(base, '/', length);
	name = name ? name + 1 : base;
	snprintf(word->uuid, sizeof(word->uuid), "%.*s", (int)(base + length - name), name);
	snprintf(path, sizeof(path), "%.*s.beat", (int)length, base);
	word->own = &nowhere[words->count];
	word->slots = NULL;
	word->placed = false;
	word->beat = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (word->beat >= 0) {
		void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, word->beat, 0);

		if (page != MAP_FAILED)
			word->slots = page;
	}
	words->count++;
}

void words_open(struct words *words)
{
	const char *from = getenv("BERTH_WORD");
	const char *choice = getenv("BERTH_INJOB");

	words->count = 0;
	if (choice && !strcmp(choice, "off"))
		return;
	while (from && *from && words->count < WORDS_MAX) {
		size_t length = strcspn(from, ":");

		if (length)
			open_word(words, from, length);
		from += length + (from[length] == ':');
	}
}

void words_forget(struct words *words)
{
	for (unsigned int i = 0; i < words->count; i++)
		if (words->word[i].beat >= 0)
			close(words->word[i].beat);
	words->count = 0;
	/* Another of the parent's threads may have held it. */
	pthread_mutex_init(&placing, NULL);
}

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

unsigned int words_duty(const struct words *words)
{
	unsigned int strictest = DUTY_OPEN;
	uint64_t now = now_ns();

	for (unsigned int i = 0; i < words->count; i++) {
		const struct order *order = words->word[i].order;
		unsigned int duty = atomic_load(&order->duty) & 0xffff;

		if (duty < strictest && atomic_load(&order->until) >= now)
			strictest = duty;
	}
	return strictest;
}
