/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lines of berthd's answer: which verb it is, and one value for each key. What the values say
 * is checked in reply.c. No Slurm in here.
 */
#pragma once

#include "reply/reply_value.h"

enum reply_key {
	KEY_NONCE,
	KEY_NODES,
	KEY_EXC_NODES,
	KEY_GPUS,
	KEY_SEATS,
	KEY_SHARE,
	KEY_GUEST,
	KEY_BEGIN,
	KEY_MEM,
	KEY_WAY,
	KEY_K,
	KEY_N,
	KEY_MIN_CPUS,
	KEY_PN_MIN_CPUS,
	KEY_MEM_PER_NODE,
	KEY_LICENSES,
	KEY_SEGMENT,
	KEY_SEGMENT_SIZE,
	KEY_MESSAGE,
	KEY_URGENT,
	KEY_NODE_GPUS,
	KEY_SECONDS,
	KEY_COUNT
};

#define FOR_PLACE (1u << REPLY_PLACE)
#define FOR_LATER (1u << REPLY_LATER)
#define FOR_PASS (1u << REPLY_PASS)
#define FOR_REFUSE (1u << REPLY_REFUSE)
#define FOR_BUSY (1u << REPLY_BUSY)
#define FOR_GPUS (FOR_PLACE | FOR_LATER)
#define FOR_TELLING (FOR_GPUS | FOR_PASS | FOR_REFUSE)
#define FOR_ALL (FOR_TELLING | FOR_BUSY)

/* Whether a verb is one of some, such as FOR_GPUS. */
static inline bool reply_is(const struct reply *reply, unsigned int verbs)
{
	return (verbs & (1u << reply->verb)) != 0;
}

/* Write down why, and return false. */
bool reply_fail(char error[REPLY_ERROR_MAX], const char *why);

/* Cut reply->text, which is `len` bytes long, into its verb and its values; a key that the verb
 * does not need may have none. */
bool reply_split(struct reply *reply, size_t len, char *values[KEY_COUNT],
		 char error[REPLY_ERROR_MAX]);
