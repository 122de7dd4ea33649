/* SPDX-License-Identifier: Apache-2.0 */
/* Is there an MPS daemon behind a pipe directory? Without one CUDA programs run without MPS. */
#ifndef BERTH_MPS_LISTENS_H
#define BERTH_MPS_LISTENS_H

#include <stdbool.h>

/* Does a process have the daemon's socket in `folder` open? Never waits, and nobody is spoken to.
 */
bool mps_listens(const char *folder);

#endif
