/* SPDX-License-Identifier: Apache-2.0 */
/* How a table of berth.conf is read, line by line, into a struct. No Slurm in here. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONFIG_FILE_MAX (1024 * 1024)
#define CONFIG_ERROR_MAX 512

enum key_kind { KEY_PATH, KEY_TEXT, KEY_NUMBER, KEY_WORD, KEY_TIME };

struct key {
	const char *name;
	enum key_kind kind;
	size_t offset; /* into the table's struct */
	size_t size;
	uint32_t min, max; /* of a time: in seconds */
	/* Choices, in the order of the field's values: of a bool, the second one is true. */
	const char *words;
	const char *right;
};

struct table {
	const char *name;
	const struct key *keys;
	size_t key_count;
	const void *defaults;
	size_t size;
};

bool table_parse(const char *text, const struct table *table, void *config,
		 char error[CONFIG_ERROR_MAX]);
bool table_load(const char *path, const struct table *table, void *config,
		char error[CONFIG_ERROR_MAX]);
