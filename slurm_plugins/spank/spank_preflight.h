/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BERTH_SPANK_PREFLIGHT_H
#define BERTH_SPANK_PREFLIGHT_H

#include <slurm/spank.h>

/* The script of a pre-flight is started under the runner, which ends it in time. */
void spank_preflight_begin(spank_t spank, int argc, char **argv);
/* Is this argument of our line in plugstack.conf one for us? */
int spank_preflight_knows(const char *argument);

#endif
