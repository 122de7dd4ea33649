/* SPDX-License-Identifier: Apache-2.0 */
#include "config/config_table.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/options.h"
#include "text/text.h"

static unsigned int edit_distance(const char *a, const char *b)
{
	enum { LONGEST = 32 };
	unsigned int row[LONGEST + 1];
	size_t la = strlen(a), lb = strlen(b);

	if (la > LONGEST || lb > LONGEST)
		return LONGEST;
	for (size_t j = 0; j <= lb; j++)
		row[j] = (unsigned int)j;
	for (size_t i = 1; i <= la; i++) {
		unsigned int diagonal = row[0];

		row[0] = (unsigned int)i;
		for (size_t j = 1; j <= lb; j++) {
			unsigned int best = diagonal + (a[i - 1] != b[j - 1]);

			diagonal = row[j];
			if (row[j] + 1 < best)
				best = row[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			row[j] = best;
		}
	}
	return row[lb];
}

static const char *nearest_key(const struct table *table, const char *name)
{
	const char *best = table->keys[0].name;
	unsigned int best_distance = edit_distance(name, best);

	for (size_t i = 1; i < table->key_count; i++) {
		unsigned int distance = edit_distance(name, table->keys[i].name);

		if (distance < best_distance) {
			best = table->keys[i].name;
			best_distance = distance;
		}
	}
	return best;
}

static bool set_word(const struct key *key, const char *value, void *field)
{
	const char *word = key->words;
	size_t len = strlen(value);

	for (int number = 0; word; number++) {
		const char *end = strchr(word, '|');

		if (len == (end ? (size_t)(end - word) : strlen(word)) &&
		    !strncmp(word, value, len)) {
			if (key->size == sizeof(bool))
				*(bool *)field = number;
			else
				*(int *)field = number;
			return true;
		}
		word = end ? end + 1 : NULL;
	}
	return false;
}

static bool set_value(void *config, const struct key *key, char *value, bool quoted)
{
	void *field = (char *)config + key->offset;
	uint64_t number;

	if ((key->kind == KEY_NUMBER) == quoted)
		return false;
	switch (key->kind) {
	case KEY_NUMBER:
		if (!parse_number(value, key->max, &number) || number < key->min)
			return false;
		*(uint32_t *)field = (uint32_t)number;
		return true;
	case KEY_PATH:
		if (*value && *value != '/')
			return false;
		/* fallthrough */
	case KEY_TEXT:
		if (strlen(value) >= key->size)
			return false;
		memcpy(field, value, strlen(value) + 1);
		return true;
	case KEY_WORD:
		return set_word(key, value, field);
	case KEY_TIME:
		if (!time_seconds(value, &number) || number < key->min || number > key->max)
			return false;
		*(uint32_t *)field = (uint32_t)number;
		return true;
	}
	return false;
}

static char *skip_blank(char *s)
{
	while (*s == ' ' || *s == '\t')
		s++;
	return s;
}

static bool only_comment_follows(char *s)
{
	s = skip_blank(s);
	return !*s || *s == '#' || *s == '\r';
}

/*
 * A plain TOML string or a bare word, cut out in place. Escapes are refused, not interpreted: none
 * of our values needs one.
 */
static char *take_value(char *s, bool *quoted)
{
	char *end;
	char quote = *s;

	*quoted = quote == '"' || quote == '\'';
	if (*quoted) {
		s++;
		end = strchr(s, quote);
		if (!end || !only_comment_follows(end + 1))
			return NULL;
		*end = '\0';
		if (quote == '"' && strchr(s, '\\'))
			return NULL;
		return s;
	}
	end = s + strcspn(s, " \t\r#");
	if (!only_comment_follows(end))
		return NULL;
	*end = '\0';
	return s;
}

/* Is this line a table's header? Then *inside says whether it is the one we read. */
static bool is_header(char *line, const struct table *table, bool *inside)
{
	static const char allowed[] =
	    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-. ";
	size_t inner;

	if (*line != '[')
		return false;
	line = skip_blank(line + 1);
	inner = strspn(line, allowed);
	if (!inner || line[inner] != ']' || !only_comment_follows(line + inner + 1))
		return false;
	while (inner && line[inner - 1] == ' ')
		inner--;
	*inside = inner == strlen(table->name) && !strncmp(line, table->name, inner);
	return true;
}

static bool parse_line(char *line, const struct table *table, void *config, uint32_t *seen,
		       char error[CONFIG_ERROR_MAX], unsigned int number)
{
	char *name = line;
	char *equals = strchr(line, '=');
	char *value;
	bool quoted;

	if (!equals) {
		snprintf(error, CONFIG_ERROR_MAX, "line %u: want key = value", number);
		return false;
	}
	value = skip_blank(equals + 1);
	*equals = '\0';
	name[strcspn(name, " \t")] = '\0';
	for (size_t i = 0; i < table->key_count; i++) {
		const struct key *key = &table->keys[i];

		if (strcmp(name, key->name))
			continue;
		if (*seen & (1u << i)) {
			snprintf(error, CONFIG_ERROR_MAX, "line %u: %s is set twice", number, name);
			return false;
		}
		*seen |= 1u << i;
		value = take_value(value, &quoted);
		if (value && set_value(config, key, value, quoted))
			return true;
		snprintf(error, CONFIG_ERROR_MAX, "line %u: %s must be %s", number, name,
			 key->right);
		return false;
	}
	snprintf(error, CONFIG_ERROR_MAX,
		 "line %u: [%s] has no key \"%.64s\"; the nearest right one is %s", number,
		 table->name, name, nearest_key(table, name));
	return false;
}

static bool parse_lines(char *text, const struct table *table, void *config,
			char error[CONFIG_ERROR_MAX])
{
	bool inside = false;
	uint32_t seen = 0;
	unsigned int number = 0;
	char *next = text;

	while (next) {
		char *line = skip_blank(next);

		number++;
		next = strchr(next, '\n');
		if (next)
			*next++ = '\0';
		if (is_header(line, table, &inside) || !inside || only_comment_follows(line))
			continue;
		if (!parse_line(line, table, config, &seen, error, number))
			return false;
	}
	return true;
}

bool table_parse(const char *text, const struct table *table, void *config,
		 char error[CONFIG_ERROR_MAX])
{
	char *copy = strdup(text);
	bool ok;

	memcpy(config, table->defaults, table->size);
	if (!copy) {
		snprintf(error, CONFIG_ERROR_MAX, "out of memory");
		return false;
	}
	ok = parse_lines(copy, table, config, error);
	if (!ok)
		memcpy(config, table->defaults, table->size);
	free(copy);
	return ok;
}

bool table_load(const char *path, const struct table *table, void *config,
		char error[CONFIG_ERROR_MAX])
{
	char reason[CONFIG_ERROR_MAX];
	FILE *file = fopen(path, "re");
	size_t len;
	char *text;
	bool ok;

	memcpy(config, table->defaults, table->size);
	if (!file) {
		if (errno == ENOENT)
			return true;
		snprintf(error, CONFIG_ERROR_MAX, "%.200s: cannot read: %s", path, strerror(errno));
		return false;
	}
	text = malloc(CONFIG_FILE_MAX + 1);
	len = text ? fread(text, 1, CONFIG_FILE_MAX, file) : 0;
	if (!text || ferror(file) || !feof(file)) {
		snprintf(error, CONFIG_ERROR_MAX, "%.200s: cannot read, or longer than 1 MiB",
			 path);
		ok = false;
	} else {
		text[len] = '\0';
		ok = table_parse(text, table, config, reason);
		if (!ok)
			snprintf(error, CONFIG_ERROR_MAX, "%.200s: %.300s", path, reason);
	}
	free(text);
	fclose(file);
	return ok;
}
