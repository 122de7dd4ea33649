/* SPDX-License-Identifier: Apache-2.0 */
/*
 * berthd's answer, from wire text to a checked structure. Nothing in here is trusted: what passes
 * obeys docs/formats.md section 1.2 in full, or the whole reply is dropped. No Slurm in here.
 */
#ifndef BERTH_REPLY_H
#define BERTH_REPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text/limits.h"

enum reply_verb { REPLY_PLACE, REPLY_LATER, REPLY_PASS, REPLY_REFUSE, REPLY_BUSY };

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
	uint32_t nodes; /* that a pass may name: all that it asks for; 0: none */
};

struct reply {
	bool ours; /* it has the request's nonce, though all else may be wrong: berthd lives */
	enum reply_verb verb;
	/* The berth; of a job that is planned later only the two counts. */
	const char *nodes; /* comma-separated; strings point into `text` */
	size_t node_count;
	const char *exc_nodes; /* all the others, as a host list; NULL: not given */
	uint8_t gpus[GPU_POSITIONS];
	size_t gpu_count; /* on each node */
	bool seats;
	bool guest;	       /* on a seat, without a GPU */
	uint64_t begin;	       /* of a guest without a seat: not before; 0: not given */
	uint32_t share;	       /* percent of each GPU that Slurm counts; 0: whole GPUs */
	uint32_t asked_share;  /* percent of the multiprocessors that was asked for */
	uint64_t gpu_mem;      /* MiB of each GPU; 0: not given */
	const char *way;       /* how these GPUs are shared; NULL: the job has them alone */
	uint32_t min_cpus;     /* 0: not given */
	uint16_t pn_min_cpus;  /* 0: not given */
	uint64_t mem_per_node; /* MB; 0: not given */
	int32_t site_factor;   /* 0: Slurm's own default */
	const char *licenses;  /* that count the GPUs by model; NULL: not given */
	const char *segment;   /* NULL: not given */
	const char *message;   /* NULL: not given */
	bool urgent;	       /* Slurm will most likely refuse the job: `message` says why */
	uint64_t node_gpus;    /* that each node has which the job may get; 0: not given */
	uint64_t seconds;      /* of a busy berthd: how long this user is not to be asked for */
	char text[REPLY_MAX_BYTES + 1];
};

#define REPLY_ERROR_MAX 160

/*
 * `len` bytes lie in reply->text. false: *reply must not be used, and `error` says why in words
 * that quote nothing of the reply.
 */
bool reply_parse(struct reply *reply, size_t len, const struct reply_expected *expected,
		 char error[REPLY_ERROR_MAX]);

#endif
