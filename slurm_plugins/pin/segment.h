/* SPDX-License-Identifier: Apache-2.0 */
/* Our one tagged segment in a text that belongs to others: [berth/1 key=value ...] */
#pragma once

#include <stdbool.h>

#include "text/text.h"

#define SEGMENT_TAG "[berth/"

/* Does this text carry, or pretend to carry, a segment of any version? */
bool segment_claimed(const char *text);
/*
 * Write `text` (may be NULL) to `out` with our segment replaced, or appended where there is none.
 * Of several segments the first is replaced and the others are dropped; all other bytes stay.
 */
void segment_set(struct text *out, const char *text, const char *body);
/* Add " key=value" (the first: "key=value") to a segment's body; the value is escaped. */
void segment_add(struct text *body, const char *key, const char *value);
