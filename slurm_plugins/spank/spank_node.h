/* SPDX-License-Identifier: Apache-2.0 */
/* The SPANK plugin in slurmstepd, in the process that becomes a task. */
#pragma once

#include "spank/spank_api.h"

/* As root, in the step's device cgroup: read the share file, look at the devices. */
void spank_node_inspect(spank_t spank, int argc, char **argv);
/* As the user, last before the program: set its environment, or stop it. */
void spank_node_prepare(spank_t spank);
/* The script of a pre-flight is started under the runner, which ends it in time. */
void spank_node_preflight(spank_t spank);
