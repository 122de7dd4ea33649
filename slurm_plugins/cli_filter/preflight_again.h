/* SPDX-License-Identifier: Apache-2.0 */
/* The running command is started once more, with the same words, to submit a pre-flight. */
#ifndef BERTH_PREFLIGHT_AGAIN_H
#define BERTH_PREFLIGHT_AGAIN_H

#include <stdint.h>

#define AGAIN_WHY_MAX 512

/* Before anything is read from standard input: it may be the script. */
void again_keep_input(void);
/* The id of what was submitted; 0: `why` says what was in the way, without a dot at its end. */
uint32_t again_submit(uint64_t seconds, const char *tier, char why[AGAIN_WHY_MAX]);

#endif
