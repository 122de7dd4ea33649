/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

enum key_kind { KEY_PATH, KEY_LIST, KEY_NUMBER, KEY_FAIL, KEY_MESSAGE };

struct key {
	const char *name;
	enum key_kind kind;
	size_t offset; /* into the table's struct */
	size_t size;
	uint32_t min, max;
	const char *right;
};

struct table {
	const char *name;
	const struct key *keys;
	size_t key_count;
	const void *defaults;
	size_t size;
};

#define MEMBER(type, field) offsetof(type, field), sizeof(((type *)0)->field)
#define FIELD(field) MEMBER(struct hook_config, field)
#define NOTICE(field) MEMBER(struct notice_config, field)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const struct key hook_keys[] = {
    {"socket", KEY_PATH, FIELD(socket), 0, 0, "an absolute path of at most 107 bytes"},
    {"deadline_ms", KEY_NUMBER, FIELD(deadline_ms), 1, 1000, "a whole number from 1 to 1000"},
    {"breaker_failures", KEY_NUMBER, FIELD(breaker_failures), 1, 1000,
     "a whole number from 1 to 1000"},
    {"breaker_seconds", KEY_NUMBER, FIELD(breaker_seconds), 1, 3600,
     "a whole number from 1 to 3600"},
    {"fail", KEY_FAIL, FIELD(fail_closed), 0, 0, "\"open\" or \"closed\""},
    {"skip_partitions", KEY_LIST, FIELD(skip_partitions), 0, 0,
     "partitions, comma-separated, at most 1023 bytes"},
    {"def_cpu_per_gpu", KEY_NUMBER, FIELD(def_cpu_per_gpu), 0, 1024,
     "a whole number from 0 to 1024"},
    {"message", KEY_MESSAGE, FIELD(message), 0, 0, "\"always\", \"flags\" or \"never\""},
    {"hook_log", KEY_PATH, FIELD(hook_log), 0, 0, "an absolute path of at most 1023 bytes"},
    {"pinned_file", KEY_PATH, FIELD(pinned_file), 0, 0, "an absolute path of at most 1023 bytes"},
};

static const struct hook_config hook_defaults = {
    .socket = "/run/berth/berthd.sock",
    /* slurmctld holds its locks meanwhile; an answer takes about 0.3 ms. */
    .deadline_ms = 50,
    .breaker_failures = 3,
    .breaker_seconds = 5,
    .message = MESSAGE_ALWAYS,
    .pinned_file = "/run/berth/pinned",
};

static const struct table hook_table = {"hook", hook_keys, COUNT(hook_keys), &hook_defaults,
					sizeof(hook_defaults)};

static const struct key notice_keys[] = {
    {"hosts", KEY_LIST, NOTICE(hosts), 0, 0, "host names, comma-separated, at most 1023 bytes"},
    {"port", KEY_NUMBER, NOTICE(port), 1, 65535, "a whole number from 1 to 65535"},
    {"munge_socket", KEY_PATH, NOTICE(munge_socket), 0, 0, "an absolute path of at most 107 bytes"},
    {"log", KEY_PATH, NOTICE(log), 0, 0, "an absolute path of at most 1023 bytes"},
};

static const struct notice_config notice_defaults = {.port = CONFIG_NOTICE_PORT};
static const struct table notice_table = {"notice", notice_keys, COUNT(notice_keys),
					  &notice_defaults, sizeof(notice_defaults)};

void config_defaults(struct hook_config *config)
{
	*config = hook_defaults;
}

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

static bool set_message(const char *value, enum message_mode *mode)
{
	static const char *const words[] = {"always", "flags", "never"};

	for (size_t i = 0; i < COUNT(words); i++)
		if (!strcmp(value, words[i])) {
			*mode = (enum message_mode)i;
			return true;
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
	case KEY_LIST:
		if (strlen(value) >= key->size)
			return false;
		memcpy(field, value, strlen(value) + 1);
		return true;
	case KEY_FAIL:
		*(bool *)field = !strcmp(value, "closed");
		return *(bool *)field || !strcmp(value, "open");
	case KEY_MESSAGE:
		return set_message(value, field);
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

static bool parse(const char *text, const struct table *table, void *config,
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

static bool load(const char *path, const struct table *table, void *config,
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
		ok = parse(text, table, config, reason);
		if (!ok)
			snprintf(error, CONFIG_ERROR_MAX, "%.200s: %.300s", path, reason);
	}
	free(text);
	fclose(file);
	return ok;
}

bool config_parse(const char *text, struct hook_config *config, char error[CONFIG_ERROR_MAX])
{
	return parse(text, &hook_table, config, error);
}

bool config_load(const char *path, struct hook_config *config, char error[CONFIG_ERROR_MAX])
{
	return load(path, &hook_table, config, error);
}

bool config_load_notice(const char *path, struct notice_config *config,
			char error[CONFIG_ERROR_MAX])
{
	return load(path, &notice_table, config, error);
}

bool config_path(const char *slurm_conf, char path[CONFIG_TEXT_MAX + 1])
{
	const char *own = getenv("BERTH_CONF");
	const char *slash;
	int len;

	if (own && *own) {
		len = snprintf(path, CONFIG_TEXT_MAX + 1, "%s", own);
	} else {
		if (!slurm_conf || !*slurm_conf)
			slurm_conf = "/etc/slurm/slurm.conf";
		slash = strrchr(slurm_conf, '/');
		len = snprintf(path, CONFIG_TEXT_MAX + 1, "%.*sberth.conf",
			       slash ? (int)(slash - slurm_conf + 1) : 0, slurm_conf);
	}
	return len >= 0 && len <= CONFIG_TEXT_MAX;
}

/* The next name of a comma-separated list; *list moves behind it. */
static const char *next_name(const char **list, size_t *len)
{
	const char *name = *list + strspn(*list, ", ");

	*len = strcspn(name, ", ");
	*list = name + *len;
	return *len ? name : NULL;
}

bool config_skips(const struct hook_config *config, const char *partitions)
{
	const char *wanted, *skipped;
	size_t wanted_len, skipped_len;

	if (!partitions)
		return false;
	while ((wanted = next_name(&partitions, &wanted_len))) {
		const char *skip = config->skip_partitions;

		while ((skipped = next_name(&skip, &skipped_len)))
			if (wanted_len == skipped_len && !strncmp(wanted, skipped, wanted_len))
				return true;
	}
	return false;
}
