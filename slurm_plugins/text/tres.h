/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slurm's request strings: "gres/gpu:a100:2,gres/nic:1", "gres/gpu=1", and the bare "a100:2" of
 * --gpus and its like. They are read as Slurm reads them: `make fuzz-tres` compares the two. No
 * Slurm in here.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "text/limits.h"
#include "text/text.h"

struct tres_found {
	bool gpu;      /* GPUs are asked for, at least one */
	uint64_t gpus; /* how many: the last number of each type, added up */
	char model[MODEL_NAME_MAX + 1];
	bool several_models;
	bool bad_model;	    /* a model name that cannot be a node feature */
	bool bad_count;	    /* GPUs in a number that cannot be read, though Slurm might */
	bool position_type; /* gpu:gK */
	bool shared;	    /* shard or seat */
	bool seat;	    /* which no GPU outside of Berth's partitions has */
	bool hidden;	    /* GPUs, shards or seats in a spelling that only Slurm may read */
};

/* Add what `tres` (may be NULL) asks for to *found. */
void tres_scan(const char *tres, struct tres_found *found);
/*
 * Take the model names out, in place: what is left is never longer. GPUs of several elements become
 * one element. Types gK stay. true: the string was changed.
 */
bool tres_strip_models(char *tres);
/* The same for --gres, where "gres/" may be left out. */
bool gres_strip_models(char *gres);
/* The same for --gpus, --gpus-per-node and so on: "a100:2" becomes "2". */
bool gpus_strip_models(char *gpus);
/* Both, for a NAME=VALUE entry of an environment whose name srun reads a request from. */
bool env_strip_models(char *entry);
/* Everything in `tres` that is neither gpu nor seat, appended to `out` with commas. */
void tres_keep_others(const char *tres, struct text *out);
/* "gres/gpu:4" in cpus_per_tres: 4; 0 when there is none. */
uint32_t tres_per_gpu(const char *per_tres);

/* How joining a model to the user's constraint went. */
enum feature_join {
	JOIN_OK,
	JOIN_UNCLEAR, /* the expression's form leaves no place for one more feature */
};
enum feature_join features_join(const char *user, const char *model, struct text *out);
