/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Environment variables that list paths (PYTHONPATH, LD_PRELOAD): one element is put in and taken
 * out, and what others wrote beside it stays byte for byte. No Slurm in here.
 */
#pragma once

#include <stdbool.h>

#include "text/text.h"

/* What separates the elements of this variable. */
const char *path_list_separators(const char *name);
/* A path from / on that no reader of such a list would take for several. */
bool path_list_element_ok(const char *element);
bool path_list_has(const char *list, const char *element, const char *separators);
/* The list with `element` before all of it; NULL is an empty list. */
void path_list_prepend(const char *list, const char *element, struct text *out);
/* The list without `element`, wherever it stands. */
void path_list_remove(const char *list, const char *element, const char *separators,
		      struct text *out);
