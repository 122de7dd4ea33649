/* SPDX-License-Identifier: Apache-2.0 */
/*
 * berthd's answer, from wire text to a checked structure. Nothing in here is trusted: what passes
 * obeys docs/develop/formats.md section 1.2 in full, or the whole reply is dropped. No Slurm in
 * here.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reply/reply_value.h"

/* What the request allows. */
struct reply_expected {
	const char *nonce;
	uint64_t gpus;		/* in all; 0: only Slurm can tell */
	uint64_t gpus_per_node; /* where `gpus` is 0; 0: unknown too, so nothing can be placed */
	uint64_t min_cpus;	/* the user's; 0: none */
	uint32_t share;		/* percent of each GPU; 0: the job wants whole GPUs */
	bool cpus_per_tres;
	bool batch;	/* has a script, and can be put back into the queue */
	bool exc_nodes; /* its user excludes nodes already */
	bool (*node_exists)(const char *name); /* NULL: nodes cannot be checked, so no pins */
	const char *licenses;		       /* that the site has; NULL: none */
	uint32_t segmented;		       /* nodes that a pass may have in segments; 0: none */
	uint32_t nodes; /* that a pass may name: all that it asks for; 0: none */
};

/*
 * `len` bytes lie in reply->text. false: *reply must not be used, and `error` says why in words
 * that quote nothing of the reply.
 */
bool reply_parse(struct reply *reply, size_t len, const struct reply_expected *expected,
		 char error[REPLY_ERROR_MAX]);
