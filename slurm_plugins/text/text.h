/* SPDX-License-Identifier: Apache-2.0 */
/* A growing string with a limit. A failure sticks, so a row of additions is checked once. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct text {
	char *data; /* NUL-terminated, or NULL while empty */
	size_t len;
	size_t cap;
	size_t limit; /* greatest len */
	bool failed;  /* the limit was reached or memory ran out */
};

void text_init(struct text *t, size_t limit);
void text_free(struct text *t);
void text_add_bytes(struct text *t, const char *bytes, size_t len);
void text_add(struct text *t, const char *s);
void text_addf(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* As docs/develop/formats.md says: bytes below 0x21 and above 0x7e, %, [ and ] become %XX. */
void text_add_escaped(struct text *t, const char *s);
/* The text, never NULL. */
const char *text_str(const struct text *t);

/* Undo the escaping in place. false: an escape or a byte that the format does not allow. */
bool unescape(char *s);
/* A decimal number without sign or leading zeros, the whole of s, at most max. */
bool parse_number(const char *s, uint64_t max, uint64_t *out);
