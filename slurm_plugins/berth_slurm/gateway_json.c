/* SPDX-License-Identifier: Apache-2.0 */
#include "berth_slurm/gateway.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

void json_begin(struct text *line, const char *kind)
{
	line->len = 0;
	line->failed = false;
	text_addf(line, "[\"%s\"", kind);
}

static bool stands_in_json(unsigned char c)
{
	return c >= 0x20 && c <= 0x7e && c != '%' && c != '"' && c != '\\';
}

static void add_quoted(struct text *line, const char *value)
{
	const char *from = value ? value : "";

	text_add(line, "\"");
	while (*from) {
		const char *to = from;

		while (stands_in_json((unsigned char)*to))
			to++;
		text_add_bytes(line, from, (size_t)(to - from));
		from = to;
		if (*from)
			text_addf(line, "%%%02X", (unsigned char)*from++);
	}
	text_add(line, "\"");
}

void json_text(struct text *line, const char *value)
{
	text_add(line, ",");
	add_quoted(line, value);
}

void json_texts(struct text *line, char *const *values, uint32_t count)
{
	text_add(line, ",[");
	for (uint32_t i = 0; i < count; i++) {
		if (i)
			text_add(line, ",");
		add_quoted(line, values[i]);
	}
	text_add(line, "]");
}

void json_number(struct text *line, uint64_t value)
{
	text_addf(line, ",%" PRIu64, value);
}

void json_number32(struct text *line, uint32_t value)
{
	if (value == NO_VAL || value == INFINITE)
		text_add(line, ",null");
	else
		json_number(line, value);
}

void json_end(struct text *line)
{
	text_add(line, "]\n");
	/* Without memory no answer is better than half of one: the other side starts the program
	 * anew. */
	if (line->failed)
		abort();
	fputs(text_str(line), stdout);
}
