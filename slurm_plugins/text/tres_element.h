/* SPDX-License-Identifier: Apache-2.0 */
/* One element of a TRES request, read as Slurm reads it. For tres.c alone. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum element_kind { ELEMENT_OTHER, ELEMENT_NAMELESS, ELEMENT_GPU, ELEMENT_SHARD, ELEMENT_SEAT };

/* gres/NAME[:TYPE][:COUNT], where = may stand for the last colon. */
struct element {
	const char *start, *end;
	enum element_kind kind;
	const char *name_end;
	const char *type; /* NULL: none */
	size_t type_len;
	uint64_t count;
	bool count_ok;
	bool hidden; /* it names GPUs, shards or seats in a spelling that only Slurm may read */
};

typedef void (*element_parser)(const char *start, const char *end, struct element *e);

const char *element_end(const char *s);
/* As it stands in a job. */
void element_parse(const char *start, const char *end, struct element *e);
/* As users write --gres: sbatch puts "gres/" in where they leave it out. */
void element_parse_gres(const char *start, const char *end, struct element *e);
/* As users write --gpus: sbatch puts "gres/gpu:" before it. */
void element_parse_gpus(const char *start, const char *end, struct element *e);
/* The number of GPUs with those of `e`, which comes after `before`. */
uint64_t element_add(uint64_t sum, const struct element *before, const struct element *e);
