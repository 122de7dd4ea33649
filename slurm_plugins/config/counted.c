/* SPDX-License-Identifier: Apache-2.0 */
#include "config/counted.h"

#include <string.h>
#include <strings.h>

#define PREFIX "berth_"
#define PREFIX_LEN (sizeof(PREFIX) - 1)

/* One element of a list of licences, NAME[@SERVER][:COUNT], where = may stand for the colon. */
struct licence {
	const char *name;
	size_t name_len;
	const char *end;
};

/* Slurm parts licences at commas and semicolons, and those of which one will do at bars. */
static bool next_licence(const char **rest, struct licence *one)
{
	const char *s = *rest ? *rest : "";

	s += strspn(s, ",;| \t\r\n");
	one->name = s;
	one->name_len = strcspn(s, ":=@,;| \t\r\n");
	one->end = s + strcspn(s, ",;|");
	*rest = one->end;
	return *s != '\0';
}

static bool is_ours(const struct licence *one)
{
	return one->name_len > PREFIX_LEN && !strncasecmp(one->name, PREFIX, PREFIX_LEN);
}

static bool called(const struct licence *one, const char *name, size_t len)
{
	return one->name_len == len && !strncmp(one->name, name, len);
}

static bool site_has(const char *of_the_site, const char *name, size_t len)
{
	struct licence one;

	while (next_licence(&of_the_site, &one))
		if (called(&one, name, len))
			return true;
	return false;
}

bool counted_model(const char *of_the_site, const char *model)
{
	struct licence one;

	while (next_licence(&of_the_site, &one)) {
		if (is_ours(&one) &&
		    (!model || (one.name_len == PREFIX_LEN + strlen(model) &&
				!strncmp(one.name + PREFIX_LEN, model, strlen(model)))))
			return true;
	}
	return false;
}

bool counted_named(const char *licenses)
{
	struct licence one;

	while (next_licence(&licenses, &one))
		if (is_ours(&one))
			return true;
	return false;
}

bool counted_join(const char *own, const char *ours, struct text *joined)
{
	struct licence one;

	if (own && strchr(own, '|'))
		return false;
	while (next_licence(&own, &one)) {
		if (is_ours(&one))
			continue;
		text_addf(joined, "%s%.*s", joined->len ? "," : "", (int)(one.end - one.name),
			  one.name);
	}
	if (*ours)
		text_addf(joined, "%s%s", joined->len ? "," : "", ours);
	return !joined->failed;
}

bool counted_valid(const char *licenses, const char *of_the_site)
{
	const char *rest = licenses;
	struct licence one;

	if (strspn(licenses,
		   "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:,") !=
	    strlen(licenses))
		return false;
	while (next_licence(&rest, &one)) {
		size_t digits = strspn(one.name + one.name_len + 1, "0123456789");

		if (!is_ours(&one) || !site_has(of_the_site, one.name, one.name_len))
			return false;
		if (one.name[one.name_len] != ':' || digits < 1 || digits > 7 ||
		    one.name + one.name_len + 1 + digits != one.end)
			return false;
	}
	return *licenses != '\0';
}
