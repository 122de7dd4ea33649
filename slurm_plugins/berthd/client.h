/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions to berthd and their answers, each within a deadline, over a connection that is kept
 * from one to the next: a new one for each takes berthd longer than the answer. No Slurm in here.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum ask_result {
	ASK_OK,
	ASK_DEAD,    /* no berthd listens; known at once */
	ASK_TIMEOUT, /* no answer within the deadline, or its queue is full */
	ASK_BAD,     /* the socket belongs to someone else, or the answer is too long */
};

struct client {
	pthread_mutex_t busy;
	int fd;
};

void client_init(struct client *client);

/*
 * Send `request` to the SOCK_SEQPACKET socket `path`, which is the same each time, and receive at
 * most `size` bytes. Only a listener that runs as `owner` or root is spoken to. Never blocks beyond
 * the deadline.
 */
enum ask_result client_ask(struct client *client, const char *path, uid_t owner,
			   uint32_t deadline_ms, const char *request, size_t request_len,
			   char *reply, size_t size, size_t *reply_len);

/* For an answer that is not what was asked for: what comes next may not be either. */
void client_hang_up(struct client *client);

uint64_t monotonic_us(void);
