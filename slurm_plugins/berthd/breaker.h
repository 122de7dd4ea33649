/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Circuit breaker: a user whose requests fail `failures` times in a row goes without for `seconds`,
 * alone: it may be what that one asks for. After failures of as many users, and of two at least,
 * with no success in between, nothing is tried for `seconds`; then one caller probes while the
 * others still go without. A user also goes without for as long as berthd says that it has spent
 * too much time on that user's requests. slurmctld calls from several threads at once.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Users that are remembered; of more, the one that would be next to try again is forgotten. */
#define BREAKER_USERS 64

struct breaker_user {
	uint32_t uid;
	uint32_t failed; /* in a row, of this user's */
	uint32_t row;	 /* the breaker's, in which this user's failures are counted; 0: in none */
	uint64_t until;	 /* goes without until then */
};

struct breaker {
	pthread_mutex_t lock;
	uint32_t failures;
	uint32_t seconds;
	uint32_t failed;     /* users, since the last success */
	uint32_t row;	     /* a number for that time, from 1 on */
	uint64_t open_until; /* milliseconds of a monotonic clock; 0: closed */
	bool probing;
	struct breaker_user users[BREAKER_USERS];
};

void breaker_init(struct breaker *breaker, uint32_t failures, uint32_t seconds);
/* May this caller try? If so, it must report how it went, or that it has not tried. */
bool breaker_allows(struct breaker *breaker, uint64_t now_ms, uint32_t uid);
void breaker_not_tried(struct breaker *breaker);
void breaker_report(struct breaker *breaker, uint64_t now_ms, uint32_t uid, bool ok);
/* berthd has spent enough on this user: the user goes without for so long. */
void breaker_set_aside(struct breaker *breaker, uint64_t now_ms, uint32_t uid, uint64_t seconds);
