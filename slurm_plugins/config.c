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
	size_t offset; /* into struct hook_config */
	size_t size;
	uint32_t min, max;
	const char *right;
};

#define FIELD(field) offsetof(struct hook_config, field), sizeof(((struct hook_config *)0)->field)

static const struct key keys[] = {
    {"socket", KEY_PATH, FIELD(socket), 0, 0, "an absolute path of at most 107 bytes"},
    {"deadline_ms", KEY_NUMBER, FIELD(deadline_ms), 1, 1000, "a whole number from 1 to 1000"},
    {"breaker_failures", KEY_NUMBER, FIELD(breaker_failures), 1, 1000,
     "a whole number from 1 to 1000"},
    {"breaker_seconds", KEY_NUMBER, FIELD(breaker_seconds), 1, 3600,
     "a whole number from 1 to 3600"},
    {"fail", KEY_FAIL, 0, 0, 0, 0, "\"open\" or \"closed\""},
    {"skip_partitions", KEY_LIST, FIELD(skip_partitions), 0, 0,
     "partitions, comma-separated, at most 1023 bytes"},
    {"def_cpu_per_gpu", KEY_NUMBER, FIELD(def_cpu_per_gpu), 0, 1024,
     "a whole number from 0 to 1024"},
    {"message", KEY_MESSAGE, 0, 0, 0, 0, "\"always\", \"flags\" or \"never\""},
    {"hook_log", KEY_PATH, FIELD(hook_log), 0, 0, "an absolute path of at most 1023 bytes"},
};

#define KEY_COUNT (sizeof(keys) / sizeof(keys[0]))

void config_defaults(struct hook_config *config)
{
	*config = (struct hook_config){
	    .socket = "/run/berth/berthd.sock",
	    /* slurmctld holds its locks meanwhile; an answer takes about 0.3 ms. */
	    .deadline_ms = 50,
	    .breaker_failures = 3,
	    .breaker_seconds = 5,
	    .message = MESSAGE_ALWAYS,
	};
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

static const char *nearest_key(const char *name)
{
	const char *best = keys[0].name;
	unsigned int best_distance = edit_distance(name, best);

	for (size_t i = 1; i < KEY_COUNT; i++) {
		unsigned int distance = edit_distance(name, keys[i].name);

		if (distance < best_distance) {
			best = keys[i].name;
			best_distance = distance;
		}
	}
	return best;
}

static bool set_value(struct hook_config *config, const struct key *key, char *value, bool quoted)
{
	char *field = (char *)config + key->offset;
	uint64_t number;

	if ((key->kind == KEY_NUMBER) == quoted)
		return false;
	switch (key->kind) {
	case KEY_NUMBER:
		if (!parse_number(value, key->max, &number) || number < key->min)
			return false;
		*(uint32_t *)(void *)field = (uint32_t)number;
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
		config->fail_closed = !strcmp(value, "closed");
		return config->fail_closed || !strcmp(value, "open");
	case KEY_MESSAGE:
		if (!strcmp(value, "always"))
			config->message = MESSAGE_ALWAYS;
		else if (!strcmp(value, "flags"))
			config->message = MESSAGE_FLAGS;
		else if (!strcmp(value, "never"))
			config->message = MESSAGE_NEVER;
		else
			return false;
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

/* Is this line a table's header? Then *in_hook says whether it is ours. */
static bool is_header(char *line, bool *in_hook)
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
	*in_hook = inner == strlen("hook") && !strncmp(line, "hook", inner);
	return true;
}

static bool parse_line(char *line, struct hook_config *config, uint32_t *seen,
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
	for (size_t i = 0; i < KEY_COUNT; i++) {
		if (strcmp(name, keys[i].name))
			continue;
		if (*seen & (1u << i)) {
			snprintf(error, CONFIG_ERROR_MAX, "line %u: %s is set twice", number, name);
			return false;
		}
		*seen |= 1u << i;
		value = take_value(value, &quoted);
		if (value && set_value(config, &keys[i], value, quoted))
			return true;
		snprintf(error, CONFIG_ERROR_MAX, "line %u: %s must be %s", number, name,
			 keys[i].right);
		return false;
	}
	snprintf(error, CONFIG_ERROR_MAX,
		 "line %u: [hook] has no key \"%.64s\"; the nearest right one is %s", number, name,
		 nearest_key(name));
	return false;
}

static bool parse_lines(char *text, struct hook_config *config, char error[CONFIG_ERROR_MAX])
{
	bool in_hook = false;
	uint32_t seen = 0;
	unsigned int number = 0;
	char *next = text;

	while (next) {
		char *line = skip_blank(next);

		number++;
		next = strchr(next, '\n');
		if (next)
			*next++ = '\0';
		if (is_header(line, &in_hook) || !in_hook || only_comment_follows(line))
			continue;
		if (!parse_line(line, config, &seen, error, number))
			return false;
	}
	return true;
}

bool config_parse(const char *text, struct hook_config *config, char error[CONFIG_ERROR_MAX])
{
	char *copy = strdup(text);
	bool ok;

	config_defaults(config);
	if (!copy) {
		snprintf(error, CONFIG_ERROR_MAX, "out of memory");
		return false;
	}
	ok = parse_lines(copy, config, error);
	if (!ok)
		config_defaults(config);
	free(copy);
	return ok;
}

bool config_load(const char *path, struct hook_config *config, char error[CONFIG_ERROR_MAX])
{
	char reason[CONFIG_ERROR_MAX];
	FILE *file = fopen(path, "re");
	size_t len;
	char *text;
	bool ok;

	config_defaults(config);
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
		ok = config_parse(text, config, reason);
		if (!ok)
			snprintf(error, CONFIG_ERROR_MAX, "%.200s: %.300s", path, reason);
	}
	free(text);
	fclose(file);
	return ok;
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
