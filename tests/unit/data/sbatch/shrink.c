/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What sbatch does around the plugin: options are set, the plugin makes them a pre-flight's, and
 * they are printed.
 *
 *   shrink SECONDS NAME=VALUE...
 */
#include <stdio.h>
#include <stdlib.h>

#include "cli_filter/preflight_shrink.h"
#include "sbatch_options.h"

int main(int argc, char **argv)
{
	for (int i = 2; i < argc; i++)
		options_read(argv[i]);
	printf("gpus=%llu\n", (unsigned long long)preflight_gpus(NULL));
	if (getenv("STEP") ? preflight_step(NULL)
			   : preflight_shrink(NULL, getenv("POOL"), strtoull(argv[1], NULL, 10)))
		return 1;
	options_print();
	return 0;
}
