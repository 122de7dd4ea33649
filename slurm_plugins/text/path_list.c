/* SPDX-License-Identifier: Apache-2.0 */
#include "text/path_list.h"

#include <string.h>

#include "text/limits.h"

const char *path_list_separators(const char *name)
{
	/* The dynamic linker takes blanks too; in a path of Python's a blank is a character. */
	return strcmp(name, "LD_PRELOAD") ? ":" : ": ";
}

bool path_list_element_ok(const char *element)
{
	if (*element != '/' || strlen(element) >= PATH_BYTES)
		return false;
	for (; *element; element++)
		if (*element <= 0x20 || *element > 0x7e || *element == ':')
			return false;
	return true;
}

/* The `len` bytes from `from` on are this element. */
static bool is(const char *from, size_t len, const char *element)
{
	return len == strlen(element) && !memcmp(from, element, len);
}

bool path_list_has(const char *list, const char *element, const char *separators)
{
	for (const char *from = list;; from++) {
		size_t len = strcspn(from, separators);

		if (is(from, len, element))
			return true;
		from += len;
		if (!*from)
			return false;
	}
}

void path_list_prepend(const char *list, const char *element, struct text *out)
{
	text_add(out, element);
	/* Without a list no colon: to Python an empty element is the folder that it runs in. */
	if (list && *list) {
		text_add(out, ":");
		text_add(out, list);
	}
}

void path_list_remove(const char *list, const char *element, const char *separators,
		      struct text *out)
{
	for (const char *from = list;; from++) {
		size_t len = strcspn(from, separators);
		bool last = !from[len];

		if (!is(from, len, element))
			text_add_bytes(out, from, len + !last);
		else if (last && out->len)
			/* With the last element goes the separator before it. */
			out->data[--out->len] = '\0';
		if (last)
			return;
		from += len;
	}
}
