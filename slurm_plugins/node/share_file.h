/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What berth-prolog left on the node for a job's steps (docs/develop/formats.md, section 12). Root
 * writes it and root reads it, and still it is checked in full: its values become a user's
 * environment. No Slurm in here.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "text/limits.h"

#ifndef SHARE_FOLDER
#define SHARE_FOLDER "/run/berth/jobs"
#endif

/* A change of the task's environment. */
struct share_variable {
	const char *name;
	const char *value; /* NULL: the variable is taken away */
	bool prepended;	   /* the value, a path, goes before the list that the task has */
};

struct share_file {
	uint32_t job;
	uint32_t uid;
	bool degraded;	 /* the share could not be set up: no user code may run */
	const char *why; /* one sentence; "" where nothing is wrong */
	uint8_t minors[GPU_POSITIONS];
	size_t minor_count; /* 0: the file names no GPUs */
	struct share_variable variables[SHARE_VARIABLES_MAX];
	size_t variable_count;
	char text[SHARE_FILE_MAX + 1]; /* all strings point into it */
};

#define SHARE_ERROR_MAX 160

enum share_result {
	SHARE_READ,
	SHARE_NONE, /* there is no such file */
	SHARE_BAD,  /* it is not to be used; the error says why */
};

/* `len` bytes lie in file->text. false: *file must not be used. */
bool share_file_parse(struct share_file *file, size_t len, uint32_t job,
		      char error[SHARE_ERROR_MAX]);
/* The file of `job` in `folder`, which must belong to `owner`, who alone may write it. */
enum share_result share_file_load(const char *folder, uint32_t job, uid_t owner,
				  struct share_file *file, char error[SHARE_ERROR_MAX]);
/*
 * The share was set up, and is broken: from now on the file says `degraded` and why, so that the
 * job's Epilog tells berthd. Nothing changes where that cannot be written, or stands there already.
 */
bool share_file_degrade(const char *folder, uint32_t job, uid_t owner, const char *why);
