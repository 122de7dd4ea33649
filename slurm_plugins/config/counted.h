/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU models that the site counts, for limits and bills: each is a licence of Slurm called
 * "berth_MODEL". One GPU of that model is one licence. No Slurm in here.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "text/text.h"

/* Does Licenses= of slurm.conf have one for this model, or for any where `model` is NULL? */
bool counted_model(const char *of_the_site, const char *model);
/* Does this request for licences name one of Berth's? */
bool counted_named(const char *licenses);
/*
 * The licences of a request without Berth's, and then `ours`. false: nothing can be added to this
 * request, which wants one licence or another.
 */
bool counted_join(const char *own, const char *ours, struct text *joined);
/* Are these licences of Berth's alone, each with a number, that the site has? */
bool counted_valid(const char *licenses, const char *of_the_site);
