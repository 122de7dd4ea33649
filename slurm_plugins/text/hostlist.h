/* SPDX-License-Identifier: Apache-2.0 */
/* Host lists as Slurm writes them. No Slurm in here. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "text/text.h"

/*
 * Append comma-separated node names in their order, with what counts up in brackets:
 * "a,n08,n09,n10" gives "a,n[08-10]". policy/formats/hostlist.py folds alike.
 */
void hostlist_fold(const char *names, struct text *out);

/*
 * Whether a list as hostlist_fold writes it, of no more than `most` names, has none for which `is`
 * is false; `context` is handed on to it. A list in another form is none.
 */
bool hostlist_all(const char *list, size_t most, bool (*is)(const char *name, const void *context),
		  const void *context);
