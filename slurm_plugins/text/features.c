/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tres.h"

#include <string.h>

/*
 * Slurm's constraint grammar is flat: parentheses and brackets do not nest, one pair of brackets at
 * most, and a count (*N) outside of brackets stands alone. So there is one right place for the
 * model in each form, or none.
 */
enum feature_join features_join(const char *user, const char *model, struct text *out)
{
	int depth = 0;
	bool top_level_or = false, parens = false, brackets = false, count = false;

	if (!user || !*user || !strcmp(user, model)) {
		text_add(out, model);
		return JOIN_OK;
	}
	for (const char *s = user; *s; s++) {
		if (*s == '(' || *s == '[')
			depth++;
		else if (*s == ')' || *s == ']')
			depth--;
		parens |= *s == '(';
		brackets |= *s == '[';
		top_level_or |= *s == '|' && depth == 0;
		count |= *s == '*' && depth == 0;
	}
	if (depth != 0 || count || (top_level_or && (parens || brackets)))
		return JOIN_UNCLEAR;
	if (top_level_or)
		text_add(out, "(");
	if (brackets) {
		text_add(out, model);
		text_add(out, "&");
	}
	text_add(out, user);
	if (top_level_or)
		text_add(out, ")");
	if (!brackets) {
		text_add(out, "&");
		text_add(out, model);
	}
	return JOIN_OK;
}
