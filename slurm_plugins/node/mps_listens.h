/* SPDX-License-Identifier: Apache-2.0 */
/* Is there an MPS daemon behind a pipe directory? Without one CUDA programs run without MPS. */
#pragma once

#include <stdbool.h>

/* Does a process have the daemon's socket in `folder` open? Never waits, and speaks to no process.
 */
bool mps_listens(const char *folder);
