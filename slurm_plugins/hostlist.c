/* SPDX-License-Identifier: Apache-2.0 */
#include "hostlist.h"

#include <string.h>

/* Numbers of more digits are not counted in: the rest belongs to the prefix. */
#define DIGITS_MAX 9

/* One name of a list: a prefix and the digits at its end. */
struct name {
	const char *start;
	size_t prefix_len;
	size_t digits_len; /* 0: it ends in none */
	uint32_t number;
};

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* The name at *list, which moves to the next one; false at the end of the list. */
static bool next_name(const char **list, struct name *name)
{
	size_t len = strcspn(*list, ",");

	if (!**list)
		return false;
	*name = (struct name){.start = *list, .prefix_len = len};
	while (name->digits_len < DIGITS_MAX && name->prefix_len > 0 &&
	       is_digit(name->start[name->prefix_len - 1])) {
		name->prefix_len--;
		name->digits_len++;
	}
	for (size_t i = 0; i < name->digits_len; i++)
		name->number =
		    name->number * 10 + (uint32_t)(name->start[name->prefix_len + i] - '0');
	*list += len;
	*list += **list == ',';
	return true;
}

static bool same_prefix(const struct name *a, const struct name *b)
{
	return a->digits_len && b->digits_len && a->prefix_len == b->prefix_len &&
	       !strncmp(a->start, b->start, a->prefix_len);
}

static size_t natural_len(uint32_t number)
{
	size_t len = 1;

	for (; number >= 10; number /= 10)
		len++;
	return len;
}

/* A range's numbers are as wide as its first, or as they need. */
static bool follows(const struct name *next, const struct name *last, const struct name *first)
{
	size_t len = natural_len(next->number);

	if (len < first->digits_len)
		len = first->digits_len;
	return next->number == last->number + 1 && next->digits_len == len;
}

static void add_digits(struct text *out, const struct name *name)
{
	text_add_bytes(out, name->start + name->prefix_len, name->digits_len);
}

/* The numbers of the names from `first` on that share its prefix; *list moves behind them. */
static void add_numbers(struct text *out, struct name first, const char **list)
{
	struct name last = first, next;
	const char *rest = *list;

	add_digits(out, &first);
	while (next_name(&rest, &next) && same_prefix(&next, &first)) {
		*list = rest;
		if (follows(&next, &last, &first)) {
			last = next;
			continue;
		}
		if (last.start != first.start) {
			text_add(out, "-");
			add_digits(out, &last);
		}
		text_add(out, ",");
		add_digits(out, &next);
		first = last = next;
	}
	if (last.start != first.start) {
		text_add(out, "-");
		add_digits(out, &last);
	}
}

void hostlist_fold(const char *names, struct text *out)
{
	struct name name, next;
	bool begun = false;

	while (next_name(&names, &name)) {
		const char *rest = names;
		bool several = next_name(&rest, &next) && same_prefix(&next, &name);

		if (begun)
			text_add(out, ",");
		begun = true;
		text_add_bytes(out, name.start, name.prefix_len);
		if (several)
			text_add(out, "[");
		add_numbers(out, name, &names);
		if (several)
			text_add(out, "]");
	}
}
