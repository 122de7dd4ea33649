/* SPDX-License-Identifier: Apache-2.0 */
#include "berthd/recent.h"

#include <pthread.h>
#include <stddef.h>

/* More users than submit jobs within half a minute; of more the oldest are forgotten. */
#define NOTES 1024
#define LASTS_US (RECENT_SECONDS * UINT64_C(1000000))

struct note {
	uint32_t uid;
	uint32_t what; /* 0: none yet */
	uint64_t at_us;
};

static struct note notes[NOTES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool holds(const struct note *note, uint32_t uid, uint32_t what, uint64_t now_us)
{
	return note->uid == uid && note->what == what && now_us - note->at_us < LASTS_US;
}

void recent_note(uint32_t uid, uint32_t what, uint64_t now_us)
{
	struct note *place = &notes[0];

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < NOTES; i++) {
		/* A user has one note of a kind, so that no user drives out the others'. */
		if (notes[i].what == what && notes[i].uid == uid) {
			place = &notes[i];
			break;
		}
		if (notes[i].at_us < place->at_us)
			place = &notes[i];
	}
	*place = (struct note){uid, what, now_us};
	pthread_mutex_unlock(&lock);
}

bool recent_has(uint32_t uid, uint32_t what, uint64_t now_us)
{
	bool found = false;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < NOTES && !found; i++)
		found = holds(&notes[i], uid, what, now_us);
	pthread_mutex_unlock(&lock);
	return found;
}
