/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SBATCH_OPTIONS_H
#define SBATCH_OPTIONS_H

#include "cli_filter/cli_options.h"

/* Sets an option by a word NAME=VALUE. */
void options_read(char *word);
/* Prints those that are set, each as such a word in its own line. */
void options_print(void);

#endif
