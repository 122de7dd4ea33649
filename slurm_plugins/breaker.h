/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Circuit breaker: after `failures` failures in a row nothing is tried for `seconds`, then one
 * caller probes while the others still go without. Where all of them were of one user, that user
 * alone goes without: it may be what that one asks for. slurmctld calls from several threads at
 * once.
 */
#ifndef BERTH_BREAKER_H
#define BERTH_BREAKER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Users that go without at the same time; of more, the one that would be next to try again does. */
#define BREAKER_ASIDE 64

struct breaker {
	pthread_mutex_t lock;
	uint32_t failures;
	uint32_t seconds;
	uint32_t failed;     /* in a row */
	uint32_t first_uid;  /* of these */
	bool several;	     /* they were of more than one user */
	uint64_t open_until; /* milliseconds of a monotonic clock; 0: closed */
	bool probing;
	struct {
		uint32_t uid;
		uint64_t until;
	} aside[BREAKER_ASIDE];
};

void breaker_init(struct breaker *breaker, uint32_t failures, uint32_t seconds);
/* May this caller try? If so, it must report how it went, or that it has not tried. */
bool breaker_allows(struct breaker *breaker, uint64_t now_ms, uint32_t uid);
void breaker_not_tried(struct breaker *breaker);
void breaker_report(struct breaker *breaker, uint64_t now_ms, uint32_t uid, bool ok);

#endif
