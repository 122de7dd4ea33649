/* SPDX-License-Identifier: Apache-2.0 */
/* Words, numbers and addresses as the machine file writes them. */
#ifndef FAKE_NVML_TEXT_H
#define FAKE_NVML_TEXT_H

#include <stdbool.h>

#include "machine.h"

#define MAX_WORDS 64

struct words {
	unsigned int count;
	char *word[MAX_WORDS];
	char text[2048];
};

/* Split at blanks; "..." keeps blanks in a value; # starts a comment. */
bool text_split(const char *line, struct words *words);
/* Cut word at '=' and return what follows, or NULL where there is none. */
char *text_value(char *word);
bool text_number(const char *text, unsigned int *number);
bool text_real(const char *text, double *number);
bool text_range(const char *text, unsigned int *first, unsigned int *last);
bool text_pci(const char *text, struct pci_address *address);
bool text_cpus(const char *text, uint64_t cpus[CPU_WORDS]);
bool text_pcie_place(const char *text, unsigned int place[PCIE_LEVELS]);
bool text_uuid_bytes(const char *text, unsigned char bytes[NVML_UUID_BYTES]);

#endif
