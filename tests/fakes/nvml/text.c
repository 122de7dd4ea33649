/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool text_split(const char *line, struct words *words)
{
	char *out = words->text, *const end = words->text + sizeof(words->text) - 1;
	bool quoted = false, inside = false;

	words->count = 0;
	for (; *line && *line != '\n' && (quoted || *line != '#'); line++) {
		if (!quoted && isspace((unsigned char)*line)) {
			if (inside)
				*out++ = '\0';
			inside = false;
		} else {
			if (!inside) {
				if (words->count == MAX_WORDS)
					return false;
				words->word[words->count++] = out;
				inside = true;
			}
			if (*line == '"')
				quoted = !quoted;
			else
				*out++ = *line;
		}
		if (out == end)
			return false;
	}
	*out = '\0';
	return !quoted;
}

char *text_value(char *word)
{
	char *equals = strchr(word, '=');

	if (!equals)
		return NULL;
	*equals = '\0';
	return equals + 1;
}

/* strtoul takes signs and blanks, which a machine file must not hold. */
static bool number_prefix(const char *text, int base, char **end, unsigned int *number)
{
	unsigned long value;

	if (!isxdigit((unsigned char)*text))
		return false;
	errno = 0;
	value = strtoul(text, end, base);
	if (errno || *end == text || value > UINT_MAX)
		return false;
	*number = (unsigned int)value;
	return true;
}

bool text_number(const char *text, unsigned int *number)
{
	const int base = strncmp(text, "0x", 2) == 0 ? 16 : 10;
	char *end;

	return number_prefix(text, base, &end, number) && !*end;
}

bool text_real(const char *text, double *number)
{
	char *end;

	if (!isdigit((unsigned char)*text))
		return false;
	*number = strtod(text, &end);
	return !*end;
}

bool text_range(const char *text, unsigned int *first, unsigned int *last)
{
	char *end;

	if (!number_prefix(text, 10, &end, first))
		return false;
	*last = *first;
	if (*end == '-' && !number_prefix(end + 1, 10, &end, last))
		return false;
	return !*end && *first <= *last;
}

bool text_pci(const char *text, struct pci_address *address)
{
	int used = 0;

	return sscanf(text, "%8x:%2x:%2x.%1x%n", &address->domain, &address->bus, &address->device,
		      &address->function, &used) == 4 &&
	       !text[used];
}

bool text_cpus(const char *text, uint64_t cpus[CPU_WORDS])
{
	char copy[512];
	char *rest = NULL;

	if (strlen(text) >= sizeof(copy))
		return false;
	strcpy(copy, text);
	memset(cpus, 0, CPU_WORDS * sizeof(*cpus));
	for (char *part = strtok_r(copy, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
		unsigned int first, last;

		if (!text_range(part, &first, &last) || last >= CPU_WORDS * 64)
			return false;
		for (unsigned int cpu = first; cpu <= last; cpu++)
			cpus[cpu / 64] |= 1ULL << (cpu % 64);
	}
	return true;
}

bool text_pcie_place(const char *text, unsigned int place[PCIE_LEVELS])
{
	int used = 0;

	return sscanf(text, "%u/%u/%u%n", &place[0], &place[1], &place[2], &used) == PCIE_LEVELS &&
	       !text[used];
}

bool text_uuid_bytes(const char *text, unsigned char bytes[NVML_UUID_BYTES])
{
	unsigned int count = 0;

	for (; *text; text++) {
		unsigned int byte;

		if (*text == '-')
			continue;
		if (count == NVML_UUID_BYTES || !isxdigit((unsigned char)text[0]) ||
		    !isxdigit((unsigned char)text[1]) || sscanf(text, "%2x", &byte) != 1)
			return false;
		bytes[count++] = (unsigned char)byte;
		text++;
	}
	return count == NVML_UUID_BYTES;
}
