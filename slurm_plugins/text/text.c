/* SPDX-License-Identifier: Apache-2.0 */
#include "text/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void text_init(struct text *t, size_t limit)
{
	*t = (struct text){.limit = limit};
}

void text_free(struct text *t)
{
	free(t->data);
	text_init(t, t->limit);
}

const char *text_str(const struct text *t)
{
	return t->data ? t->data : "";
}

void text_add_bytes(struct text *t, const char *bytes, size_t len)
{
	size_t cap = t->cap ? t->cap : 256;
	char *grown;

	if (t->failed)
		return;
	if (len > t->limit - t->len) {
		t->failed = true;
		return;
	}
	while (cap <= t->len + len)
		cap *= 2;
	if (cap != t->cap) {
		grown = realloc(t->data, cap);
		if (!grown) {
			t->failed = true;
			return;
		}
		t->data = grown;
		t->cap = cap;
	}
	memcpy(t->data + t->len, bytes, len);
	t->len += len;
	t->data[t->len] = '\0';
}

void text_add(struct text *t, const char *s)
{
	text_add_bytes(t, s, strlen(s));
}

void text_addf(struct text *t, const char *format, ...)
{
	char part[1024];
	va_list args;
	int len;

	va_start(args, format);
	len = vsnprintf(part, sizeof(part), format, args);
	va_end(args);
	if (len < 0 || (size_t)len >= sizeof(part)) {
		t->failed = true;
		return;
	}
	text_add_bytes(t, part, (size_t)len);
}

static bool stands_as_it_is(unsigned char c)
{
	return c >= 0x21 && c <= 0x7e && c != '%' && c != '[' && c != ']';
}

void text_add_escaped(struct text *t, const char *s)
{
	static const char digits[] = "0123456789ABCDEF";

	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (stands_as_it_is(c)) {
			text_add_bytes(t, s, 1);
		} else {
			char escape[3] = {'%', digits[c >> 4], digits[c & 15]};

			text_add_bytes(t, escape, sizeof(escape));
		}
	}
}

static int hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

bool unescape(char *s)
{
	char *to = s;

	for (; *s; s++) {
		int high, low;

		if (stands_as_it_is((unsigned char)*s)) {
			*to++ = *s;
			continue;
		}
		if (*s != '%')
			return false;
		high = hex_value(s[1]);
		if (high < 0)
			return false;
		low = hex_value(s[2]);
		/* A NUL inside would hide what follows from every later check. */
		if (low < 0 || (high == 0 && low == 0))
			return false;
		*to++ = (char)(high * 16 + low);
		s += 2;
	}
	*to = '\0';
	return true;
}

bool parse_number(const char *s, uint64_t max, uint64_t *out)
{
	uint64_t n = 0;

	if (!*s || (s[0] == '0' && s[1]))
		return false;
	for (; *s; s++) {
		uint64_t digit;

		if (*s < '0' || *s > '9')
			return false;
		digit = (uint64_t)(*s - '0');
		if (digit > max || n > (max - digit) / 10)
			return false;
		n = n * 10 + digit;
	}
	*out = n;
	return true;
}
