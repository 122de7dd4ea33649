/* SPDX-License-Identifier: Apache-2.0 */
#include "breaker.h"

void breaker_init(struct breaker *breaker, uint32_t failures, uint32_t seconds)
{
	*breaker = (struct breaker){.failures = failures, .seconds = seconds};
	pthread_mutex_init(&breaker->lock, NULL);
}

static bool is_aside(const struct breaker *breaker, uint64_t now_ms, uint32_t uid)
{
	for (size_t i = 0; i < BREAKER_ASIDE; i++)
		if (breaker->aside[i].uid == uid && now_ms < breaker->aside[i].until)
			return true;
	return false;
}

static void set_aside(struct breaker *breaker, uint64_t until, uint32_t uid)
{
	size_t first = 0;

	for (size_t i = 1; i < BREAKER_ASIDE; i++)
		if (breaker->aside[i].until < breaker->aside[first].until)
			first = i;
	breaker->aside[first].uid = uid;
	breaker->aside[first].until = until;
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
	if (!breaker->failed++) {
		breaker->first_uid = uid;
		breaker->several = false;
	}
	breaker->several = breaker->several || uid != breaker->first_uid;
	if (breaker->open_until || (breaker->several && breaker->failed >= breaker->failures))
		breaker->open_until = until;
	else if (breaker->failed >= breaker->failures)
		set_aside(breaker, until, uid);
}

void breaker_report(struct breaker *breaker, uint64_t now_ms, uint32_t uid, bool ok)
{
	pthread_mutex_lock(&breaker->lock);
	breaker->probing = false;
	if (ok) {
		breaker->failed = 0;
		breaker->open_until = 0;
	} else {
		take_failure(breaker, now_ms + 1000 * (uint64_t)breaker->seconds, uid);
	}
	pthread_mutex_unlock(&breaker->lock);
}
