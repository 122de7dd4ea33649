/* SPDX-License-Identifier: Apache-2.0 */
/* A read behind the end and a sum that overflows: both have to be found in a process that loads
 * this. */

#include <limits.h>
#include <stdlib.h>

__attribute__((constructor)) static void plant(void)
{
	volatile char *text = malloc(8);
	volatile int most = INT_MAX;

	text[0] = text[8];
	most = most + 1;
	free((void *)text);
}
