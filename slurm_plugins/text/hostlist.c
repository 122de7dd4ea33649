/* SPDX-License-Identifier: Apache-2.0 */
#include "text/hostlist.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "text/limits.h"

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

/* Names of one prefix whose numbers count up, or with a width of 0 one name that stands alone. */
struct range {
	const char *prefix;
	size_t prefix_len;
	size_t width; /* digits of the first */
	uint32_t first, last;
};

/* A place in a list. */
struct walk {
	const char *rest;
	const char *prefix;
	size_t prefix_len;
	bool inside; /* between brackets */
	bool wrong;
};

static bool read_number(struct walk *walk, size_t *width, uint32_t *number)
{
	*width = strspn(walk->rest, "0123456789");
	*number = 0;
	if (*width < 1 || *width > DIGITS_MAX)
		return false;
	for (size_t i = 0; i < *width; i++)
		*number = *number * 10 + (uint32_t)(*walk->rest++ - '0');
	return true;
}

static bool read_range(struct walk *walk, struct range *range)
{
	size_t width;

	if (!read_number(walk, &range->width, &range->first))
		return false;
	range->last = range->first;
	if (*walk->rest == '-') {
		walk->rest++;
		if (!read_number(walk, &width, &range->last))
			return false;
	}
	if (range->last < range->first || (*walk->rest != ',' && *walk->rest != ']'))
		return false;
	if (*walk->rest++ == ']')
		walk->inside = false;
	return true;
}

/* What follows a whole word is the end, or a comma and another word. */
static bool end_word(struct walk *walk)
{
	if (*walk->rest != ',')
		return !*walk->rest;
	return *++walk->rest != '\0';
}

static bool read_next(struct walk *walk, struct range *range)
{
	if (!walk->inside) {
		walk->prefix = walk->rest;
		walk->prefix_len = strcspn(walk->rest, ",[]");
		walk->rest += walk->prefix_len;
		walk->inside = *walk->rest == '[';
		walk->rest += walk->inside;
		if (!walk->inside) {
			*range =
			    (struct range){.prefix = walk->prefix, .prefix_len = walk->prefix_len};
			return walk->prefix_len > 0 && end_word(walk);
		}
	}
	range->prefix = walk->prefix;
	range->prefix_len = walk->prefix_len;
	return read_range(walk, range) && (walk->inside || end_word(walk));
}

/* The next part of the list; false at its end, and where it is none. */
static bool next_range(struct walk *walk, struct range *range)
{
	if (walk->wrong || (!*walk->rest && !walk->inside))
		return false;
	walk->wrong = !read_next(walk, range);
	return !walk->wrong;
}

/* The next number, in as many digits or one more. */
static void count_up(char *number)
{
	size_t len = strlen(number), at = len;

	while (at > 0 && number[at - 1] == '9')
		number[--at] = '0';
	if (at > 0) {
		number[at - 1]++;
	} else {
		memmove(number + 1, number, len + 1);
		*number = '1';
	}
}

/* The digits count up in place: a list of all nodes but a few is read while the user waits. */
static bool each_is(const struct range *range, bool (*is)(const char *name, const void *context),
		    const void *context)
{
	char name[NODE_NAME_MAX + 1];
	char *number;

	if (range->prefix_len + DIGITS_MAX > NODE_NAME_MAX)
		return false;
	memcpy(name, range->prefix, range->prefix_len);
	number = name + range->prefix_len;
	*number = '\0';
	if (!range->width)
		return is(name, context);
	snprintf(number, DIGITS_MAX + 1, "%0*" PRIu32, (int)range->width, range->first);
	for (uint32_t i = range->first; is(name, context); i++) {
		if (i == range->last)
			return true;
		count_up(number);
	}
	return false;
}

bool hostlist_all(const char *list, size_t most, bool (*is)(const char *name, const void *context),
		  const void *context)
{
	struct walk walk = {.rest = list};
	struct range range;
	size_t count = 0;

	while (next_range(&walk, &range)) {
		count += (size_t)range.last - range.first + 1;
		if (count > most || !each_is(&range, is, context))
			return false;
	}
	return count > 0 && !walk.wrong;
}
