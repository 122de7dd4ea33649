/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Circuit breaker: after `failures` failures in a row nothing is tried for `seconds`, then one
 * caller probes while the others still go without. slurmctld calls from several threads at once.
 */
#ifndef BERTH_BREAKER_H
#define BERTH_BREAKER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct breaker {
	pthread_mutex_t lock;
	uint32_t failures;
	uint32_t seconds;
	uint32_t failed;     /* in a row */
	uint64_t open_until; /* milliseconds of a monotonic clock; 0: closed */
	bool probing;
};

void breaker_init(struct breaker *breaker, uint32_t failures, uint32_t seconds);
/* May this caller try? If so, it must report how it went, or that it has not tried. */
bool breaker_allows(struct breaker *breaker, uint64_t now_ms);
void breaker_not_tried(struct breaker *breaker);
void breaker_report(struct breaker *breaker, uint64_t now_ms, bool ok);

#endif
