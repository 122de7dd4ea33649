/* SPDX-License-Identifier: Apache-2.0 */
/* Host lists as Slurm writes them. No Slurm in here. */
#ifndef BERTH_HOSTLIST_H
#define BERTH_HOSTLIST_H

#include "text.h"

/*
 * Append comma-separated node names in their order, with what counts up in brackets:
 * "a,n08,n09,n10" gives "a,n[08-10]". policy/hostlist.py folds alike.
 */
void hostlist_fold(const char *names, struct text *out);

#endif
