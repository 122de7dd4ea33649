/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a pin writes into a job. Slurm refuses the whole submission where one of these texts is
 * longer than it takes, so each says whether it fits. No Slurm in here.
 */
#pragma once

#include "reply/reply.h"
#include "text/text.h"

/* The job's Extra with the place in it; `own` (may be NULL) is what stands there. */
bool pin_extra(const struct reply *reply, const char *own, struct text *extra);
/*
 * The request for GPUs, each type `count` times, beside what else `own` (may be NULL) asks for. Of
 * a job that is placed later it names no types.
 */
bool pin_tres(const struct reply *reply, const char *own, size_t count, struct text *tres);
