/* SPDX-License-Identifier: Apache-2.0 */
#include "breaker.h"

void breaker_init(struct breaker *breaker, uint32_t failures, uint32_t seconds)
{
	*breaker = (struct breaker){.failures = failures, .seconds = seconds};
	pthread_mutex_init(&breaker->lock, NULL);
}

bool breaker_allows(struct breaker *breaker, uint64_t now_ms)
{
	bool allowed;

	pthread_mutex_lock(&breaker->lock);
	if (!breaker->open_until) {
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

void breaker_report(struct breaker *breaker, uint64_t now_ms, bool ok)
{
	pthread_mutex_lock(&breaker->lock);
	breaker->probing = false;
	if (ok) {
		breaker->failed = 0;
		breaker->open_until = 0;
	} else if (breaker->open_until || ++breaker->failed >= breaker->failures) {
		breaker->open_until = now_ms + 1000 * (uint64_t)breaker->seconds;
	}
	pthread_mutex_unlock(&breaker->lock);
}
