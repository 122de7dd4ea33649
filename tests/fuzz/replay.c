/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a libFuzzer target once over files, with any compiler: `make coverage-c` counts lines by it.
 */
#include <stdint.h>
#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv)
{
	static uint8_t data[1 << 20];

	for (int i = 1; i < argc; i++) {
		FILE *file = fopen(argv[i], "r");

		if (!file) {
			perror(argv[i]);
			return 1;
		}
		LLVMFuzzerTestOneInput(data, fread(data, 1, sizeof(data), file));
		fclose(file);
	}
	return 0;
}
