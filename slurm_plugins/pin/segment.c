/* SPDX-License-Identifier: Apache-2.0 */
#include "pin/segment.h"

#include <string.h>

#define SEGMENT_OPEN "[berth/1 "

bool segment_claimed(const char *text)
{
	return text && strstr(text, SEGMENT_TAG);
}

/* The next whole segment at or after `from`; NULL when there is none. */
static const char *next_segment(const char *from, const char **end)
{
	const char *start = strstr(from, SEGMENT_OPEN);
	const char *close = start ? strchr(start, ']') : NULL;

	if (!close)
		return NULL;
	*end = close + 1;
	return start;
}

static void add_segment(struct text *out, const char *body)
{
	text_add(out, SEGMENT_OPEN);
	text_add(out, body);
	text_add(out, "]");
}

void segment_set(struct text *out, const char *text, const char *body)
{
	const char *rest = text ? text : "";
	const char *start, *end;
	bool written = false;

	while ((start = next_segment(rest, &end))) {
		text_add_bytes(out, rest, (size_t)(start - rest));
		if (!written)
			add_segment(out, body);
		written = true;
		rest = end;
	}
	text_add(out, rest);
	if (!written)
		add_segment(out, body);
}

void segment_add(struct text *body, const char *key, const char *value)
{
	if (body->len)
		text_add(body, " ");
	text_add(body, key);
	text_add(body, "=");
	text_add_escaped(body, value);
}
