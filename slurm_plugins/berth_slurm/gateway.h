/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program berth-slurm: one command a line on stdin, an answer in lines of JSON on stdout, which
 * policy/slurm/by_library/program.py reads. Texts in it are percent-escaped, so every line is ASCII
 * whatever users wrote.
 */
#pragma once

#include "common/slurm_api.h"
#include "text/text.h"

/* The longest line; a job's texts are far shorter. */
#define GATEWAY_LINE (16u << 20)

/* What libslurm exports in every supported release, though its header does not say so: the words
 * of squeue and scontrol. */
extern const char *slurm_job_state_reason_string(uint32_t reason);
extern char *slurm_job_state_string(uint32_t state);
extern char *slurm_node_state_string_complete(uint32_t state);

/* A record's JSON: an array whose first item is its kind. */
void json_begin(struct text *line, const char *kind);
void json_text(struct text *line, const char *value);
void json_texts(struct text *line, char *const *values, uint32_t count);
void json_number(struct text *line, uint64_t value);
/* NO_VAL and INFINITE become null. */
void json_number32(struct text *line, uint32_t value);
/* Close the array and print it. */
void json_end(struct text *line);

/* The records that the other side has: their digests by key. */
struct seen {
	struct seen_entry *entries;
	size_t cap; /* a power of two */
	size_t count;
	uint32_t round;
};
/* A new look at all records begins. */
void seen_begin(struct seen *seen);
/* Whether the record is new or another than before. */
bool seen_changed(struct seen *seen, uint64_t key, const struct text *line);
/* The record is as before, though it was not read. */
void seen_keep(struct seen *seen, uint64_t key);
/* The look is over: forget the keys that it did not meet, and print them unless kind is NULL.
 * Whether there were any. */
bool seen_end(struct seen *seen, const char *kind);
void seen_free(struct seen *seen);

/* Each answers one command but for its last line; 0, or the error that errno has then. */
int gateway_read(bool afresh);
int gateway_job(uint32_t job_id);
int gateway_update(char *job, char *changes, struct text *said);
int gateway_requeue(char *job, bool only_running, struct text *said);
int gateway_cancel(const char *job);
int gateway_signal(const char *job, char *number);
/* A job, by its number or as one of its array, was changed: its record is to be read again. */
void gateway_changed(const char *name);
int gateway_config(void);
int gateway_ping(void);
void gateway_forget(void);
