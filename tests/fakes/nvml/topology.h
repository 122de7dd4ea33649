/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKE_NVML_TOPOLOGY_H
#define FAKE_NVML_TOPOLOGY_H

#include "machine.h"

/* Whether the link carries data; error tells a link that does not exist. */
bool topology_link_up(const struct gpu *gpu, unsigned int number, nvmlReturn_t *error);

#endif
