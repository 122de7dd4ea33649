/* SPDX-License-Identifier: Apache-2.0 */
/* The values of berthd's answer, as the plugin works with them. No Slurm in here. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text/limits.h"

enum reply_verb { REPLY_PLACE, REPLY_LATER, REPLY_PASS, REPLY_REFUSE, REPLY_BUSY };

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
	const char *licenses;  /* that count the GPUs by model; NULL: not given */
	const char *segment;   /* NULL: not given */
	const char *message;   /* NULL: not given */
	bool urgent;	       /* Slurm will most likely refuse the job: `message` says why */
	uint64_t node_gpus;    /* that each node has which the job may get; 0: not given */
	uint64_t segment_size; /* nodes of a segment of topology/block; 0: not given */
	uint64_t seconds;      /* of a busy berthd: how long this user is not to be asked for */
	char text[REPLY_MAX_BYTES + 1];
};

#define REPLY_ERROR_MAX 160
