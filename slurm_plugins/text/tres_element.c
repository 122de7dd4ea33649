/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How slurm_get_next_tres() reads the elements of a request, the same from 24.11 to 26.05;
 * tests/fuzz/tres_as_slurm.c compares the two.
 */
#include "text/tres_element.h"

#include <string.h>

#include "text/limits.h"

enum number { NO_NUMBER, NUMBER_TOO_LARGE, NUMBER_OK };

/* Slurm takes a suffix in a count; for GPUs only those of 1024 are of use. */
static enum number parse_count(const char *s, const char *end, uint64_t *count)
{
	uint64_t n = 0;
	size_t len;

	if (s == end || *s < '0' || *s > '9')
		return NO_NUMBER;
	for (; s < end && *s >= '0' && *s <= '9'; s++)
		n = n > GPUS_MAX ? n : n * 10 + (uint64_t)(*s - '0');
	len = (size_t)(end - s);
	if (len) {
		bool bytes = len == 2 && (s[1] == 'b' || s[1] == 'B');
		bool binary = len == 3 && !strncasecmp(s + 1, "ib", 2);

		if (!strchr("kKmMgGtTpP", *s) || !(len == 1 || bytes || binary))
			return NO_NUMBER;
		if (n && (bytes || (*s != 'k' && *s != 'K')))
			return NUMBER_TOO_LARGE;
		n *= 1024;
	}
	*count = n;
	return n <= GPUS_MAX ? NUMBER_OK : NUMBER_TOO_LARGE;
}

/*
 * What follows a name and `sign`: TYPE:COUNT, TYPE or COUNT between s and end. Slurm looks for the
 * count behind the last =, or else behind the last colon, where a word may stand that is no number:
 * then it is the type.
 */
static void parse_type_and_count(char sign, const char *s, const char *end, struct element *e)
{
	size_t len = (size_t)(end - s);
	const char *last = memrchr(s, '=', len);
	enum number number;

	if (!last)
		last = memrchr(s, ':', len);
	e->count = 1;
	number = parse_count(last ? last + 1 : s, end, &e->count);
	e->count_ok = number == NUMBER_OK;
	if (last) {
		e->type = s;
		e->type_len = (size_t)(last - s);
		e->count_ok = e->count_ok && e->type_len && sign == ':';
	} else if (number == NO_NUMBER && sign == ':') {
		e->type = len ? s : NULL;
		e->type_len = len;
		e->count_ok = len > 0;
	}
}

static enum element_kind kind_of(const char *name, const char *end, const char **name_end)
{
	static const struct {
		const char *name;
		enum element_kind kind;
	} kinds[] = {{"gpu", ELEMENT_GPU}, {"shard", ELEMENT_SHARD}, {"seat", ELEMENT_SEAT}};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		size_t len = strlen(kinds[i].name);

		*name_end = name + len;
		if ((size_t)(end - name) >= len && !strncmp(name, kinds[i].name, len) &&
		    (*name_end == end || strchr(":=", **name_end)))
			return kinds[i].kind;
	}
	return ELEMENT_OTHER;
}

/*
 * Slurm finds "gres" anywhere in an element, and reads on behind it and one slash: "xgres/gpu:1" is
 * a GPU for it, and "gresgpu:1" too. Slurm itself writes it at the start alone. Here every spelling
 * that looks like it counts, whether this Slurm would read it or not.
 */
static bool hides_gpus(const struct element *e)
{
	for (const char *s = e->start; e->end - s > 4; s++) {
		const char *name = s + 4, *name_end;

		if (strncasecmp(s, "gres", 4))
			continue;
		if (strchr("/:=", *name))
			name++;
		if (kind_of(name, e->end, &name_end) != ELEMENT_OTHER &&
		    !(e->kind != ELEMENT_OTHER && name_end == e->name_end))
			return true;
	}
	return false;
}

/* Without a name Slurm reads no further in the whole request. */
static bool is_nameless(const struct element *e)
{
	const char *name = memmem(e->start, (size_t)(e->end - e->start), "gres", 4);
	uint64_t count;

	if (!name)
		return false;
	name += 4;
	if (name < e->end && *name == '/')
		name++;
	return name < e->end && (strchr(":=", *name) || parse_count(name, e->end, &count));
}

static void parse_name(const char *name, struct element *e)
{
	e->kind = kind_of(name, e->end, &e->name_end);
	if (e->kind != ELEMENT_OTHER && e->name_end < e->end)
		parse_type_and_count(*e->name_end, e->name_end + 1, e->end, e);
}

static bool is_gres(const char *start, const char *end)
{
	return end - start > 5 && !strncmp(start, "gres/", 5);
}

void element_parse(const char *start, const char *end, struct element *e)
{
	*e = (struct element){.start = start, .end = end, .count_ok = true, .count = 1};
	if (is_gres(start, end))
		parse_name(start + 5, e);
	e->hidden = hides_gpus(e);
	if (e->kind == ELEMENT_OTHER && is_nameless(e))
		e->kind = ELEMENT_NAMELESS;
}

void element_parse_gres(const char *start, const char *end, struct element *e)
{
	*e = (struct element){.start = start, .end = end, .count_ok = true, .count = 1};
	parse_name(is_gres(start, end) ? start + 5 : start, e);
}

const char *element_end(const char *s)
{
	return strchrnul(s, ',');
}

void element_parse_gpus(const char *start, const char *end, struct element *e)
{
	*e = (struct element){.start = start, .end = end, .kind = ELEMENT_GPU};
	parse_type_and_count(':', start, end, e);
}

/* GPUs of one type that are asked for twice: Slurm takes the last number. */
uint64_t element_add(uint64_t sum, const struct element *before, const struct element *e)
{
	bool same = before->kind == ELEMENT_GPU && before->type_len == e->type_len &&
		    (!e->type_len || !memcmp(before->type, e->type, e->type_len));

	return (same ? sum - before->count : sum) + e->count;
}
