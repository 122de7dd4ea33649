/* SPDX-License-Identifier: Apache-2.0 */
#include "berthd/breaker.h"

void breaker_init(struct breaker *breaker, uint32_t failures, uint32_t seconds)
{
	*breaker = (struct breaker){.failures = failures, .seconds = seconds, .row = 1};
	pthread_mutex_init(&breaker->lock, NULL);
}

/* NULL: nothing is known of this user. An entry that says nothing is free, root's too. */
static struct breaker_user *find(struct breaker *breaker, uint32_t uid)
{
	for (size_t i = 0; i < BREAKER_USERS; i++) {
		struct breaker_user *user = &breaker->users[i];

		if (user->uid == uid && (user->failed || user->until))
			return user;
	}
	return NULL;
}

/* An entry that says nothing goes first, then that of the user who would be next to try again. */
static uint64_t worth(const struct breaker_user *user)
{
	return user->failed || user->until ? user->until + 1 : 0;
}

static struct breaker_user *find_or_make(struct breaker *breaker, uint32_t uid)
{
	struct breaker_user *user = find(breaker, uid);

	if (user)
		return user;
	user = &breaker->users[0];
	for (size_t i = 1; i < BREAKER_USERS; i++)
		if (worth(&breaker->users[i]) < worth(user))
			user = &breaker->users[i];
	*user = (struct breaker_user){.uid = uid};
	return user;
}

static bool is_aside(struct breaker *breaker, uint64_t now_ms, uint32_t uid)
{
	const struct breaker_user *user = find(breaker, uid);

	return user && now_ms < user->until;
}

bool breaker_allows(struct breaker *breaker, uint64_t now_ms, uint32_t uid)
{
	bool allowed;

	pthread_mutex_lock(&breaker->lock);
	if (is_aside(breaker, now_ms, uid)) {
		allowed = false;
	} else if (!breaker->open_until) {
		allowed = true;
	} else if (now_ms < breaker->open_until || breaker->probing) {
		allowed = false;
	} else {
		breaker->probing = true;
		allowed = true;
	}
	pthread_mutex_unlock(&breaker->lock);
	return allowed;
}

void breaker_not_tried(struct breaker *breaker)
{
	pthread_mutex_lock(&breaker->lock);
	/* The next one probes in this one's place. */
	breaker->probing = false;
	pthread_mutex_unlock(&breaker->lock);
}

static void take_failure(struct breaker *breaker, uint64_t until, uint32_t uid)
{
	struct breaker_user *user = find_or_make(breaker, uid);

	/* Each user counts once, however many requests of one fail. */
	if (user->row != breaker->row)
		breaker->failed++;
	user->row = breaker->row;
	user->failed++;
	if (breaker->open_until || (breaker->failed > 1 && breaker->failed >= breaker->failures))
		breaker->open_until = until;
	else if (user->failed >= breaker->failures)
		user->until = until;
}

static void take_success(struct breaker *breaker, uint32_t uid)
{
	struct breaker_user *user = find(breaker, uid);

	breaker->failed = 0;
	breaker->row++;
	breaker->open_until = 0;
	if (user)
		user->failed = 0;
}

void breaker_report(struct breaker *breaker, uint64_t now_ms, uint32_t uid, bool ok)
{
	pthread_mutex_lock(&breaker->lock);
	breaker->probing = false;
	if (ok)
		take_success(breaker, uid);
	else
		take_failure(breaker, now_ms + 1000 * (uint64_t)breaker->seconds, uid);
	pthread_mutex_unlock(&breaker->lock);
}

void breaker_set_aside(struct breaker *breaker, uint64_t now_ms, uint32_t uid, uint64_t seconds)
{
	pthread_mutex_lock(&breaker->lock);
	find_or_make(breaker, uid)->until = now_ms + 1000 * seconds;
	pthread_mutex_unlock(&breaker->lock);
}
