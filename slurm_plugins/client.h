/* SPDX-License-Identifier: Apache-2.0 */
/* One question to berthd and its answer, within a deadline. No Slurm in here. */
#ifndef BERTH_CLIENT_H
#define BERTH_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum ask_result {
	ASK_OK,
	ASK_DEAD,    /* nobody listens; known at once */
	ASK_TIMEOUT, /* no answer within the deadline, or its queue is full */
	ASK_BAD,     /* the socket belongs to someone else, or the answer is too long */
};

/*
 * Send `request` to the SOCK_SEQPACKET socket `path` and receive at most `size` bytes. Only a
 * listener that runs as `owner` or root is spoken to. Never blocks beyond the deadline.
 */
enum ask_result client_ask(const char *path, uid_t owner, uint32_t deadline_ms, const char *request,
			   size_t request_len, char *reply, size_t size, size_t *reply_len);

uint64_t monotonic_us(void);

#endif
