/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A variable is handed on to whatever a task starts: to steps of the same job, which must not get
 * it twice, and to jobs that are submitted in it, which must not keep it. So each task is told what
 * it was given, by INJECTED (NAME=ELEMENT:NAME=ELEMENT), and that is taken away before anything
 * new is given.
 */
#include "spank/spank_injected.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "text/path_list.h"
#include "text/text.h"

#define INJECTED "BERTH_INJECTED"
/* Where guard and job speak; see prolog_epilog/injob/. */
#define WORD "BERTH_WORD"
#define BERTH_WORDS "/run/berth/"
/* The user's say: "off" leaves the program alone. */
#define CHOICE "BERTH_INJOB"
/* The kernel takes no longer NAME=VALUE, and would not start the task (MAX_ARG_STRLEN). */
#define ENTRY_MAX (128 * 1024 - 1)

/* The task's value of any length, which the next change of a variable may free; or NULL. */
static const char *value_of(spank_t spank, const char *name)
{
	size_t len = strlen(name);
	char **env;

	if (spank_get_item(spank, S_JOB_ENV, &env) != ESPANK_SUCCESS)
		return NULL;
	for (; env && *env; env++)
		if (!strncmp(*env, name, len) && (*env)[len] == '=')
			return *env + len + 1;
	return NULL;
}

static void take_away(spank_t spank, const char *name, const char *element)
{
	const char *list = value_of(spank, name);
	struct text left;

	if (!list)
		return;
	text_init(&left, ENTRY_MAX);
	path_list_remove(list, element, path_list_separators(name), &left);
	if (!left.failed && left.len != strlen(list)) {
		if (left.len)
			spank_setenv(spank, name, text_str(&left), 1);
		else
			spank_unsetenv(spank, name);
	}
	text_free(&left);
}

void spank_injected_forget(spank_t spank)
{
	const char *value = value_of(spank, INJECTED);
	char *given = value ? strdup(value) : NULL;
	char *next = given;

	while (next) {
		char *name = strsep(&next, ":");
		char *element = strchr(name, '=');

		if (!element)
			continue;
		*element++ = '\0';
		if (*name && path_list_element_ok(element))
			take_away(spank, name, element);
	}
	if (value)
		spank_unsetenv(spank, INJECTED);
	free(given);
	value = value_of(spank, WORD);
	if (value && !strncmp(value, BERTH_WORDS, strlen(BERTH_WORDS)))
		spank_unsetenv(spank, WORD);
}

static bool give(spank_t spank, const char *name, const char *element)
{
	const char *list = value_of(spank, name);
	struct text longer;
	bool given = false;

	if (list && path_list_has(list, element, path_list_separators(name)))
		return false;
	text_init(&longer, ENTRY_MAX - strlen(name) - 1);
	path_list_prepend(list, element, &longer);
	if (!longer.failed)
		given = spank_setenv(spank, name, text_str(&longer), 1) == ESPANK_SUCCESS;
	text_free(&longer);
	return given;
}

void spank_injected_give(spank_t spank, const struct share_file *file)
{
	const char *choice = value_of(spank, CHOICE);
	struct text told;

	if (choice && !strcmp(choice, "off"))
		return;
	text_init(&told, SHARE_FILE_MAX);
	for (size_t i = 0; i < file->variable_count; i++) {
		const struct share_variable *variable = &file->variables[i];

		if (!variable->prepended || !give(spank, variable->name, variable->value))
			continue;
		text_addf(&told, "%s%s=", told.len ? ":" : "", variable->name);
		text_add(&told, variable->value);
	}
	if (told.len && !told.failed)
		spank_setenv(spank, INJECTED, text_str(&told), 1);
	text_free(&told);
}
