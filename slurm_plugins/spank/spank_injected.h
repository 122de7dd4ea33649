/* SPDX-License-Identifier: Apache-2.0 */
/* What a task finds before its user's own PYTHONPATH and LD_PRELOAD; docs/user/injob.md. */
#pragma once

#include "spank/spank_api.h"

#include "node/share_file.h"

/* Take away what an outer job, or an earlier task of this one, was given. */
void spank_injected_forget(spank_t spank);
/* Give this task what its job's share file says, unless its user wants none. */
void spank_injected_give(spank_t spank, const struct share_file *file);
