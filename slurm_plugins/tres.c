/* SPDX-License-Identifier: Apache-2.0 */
#include "tres.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum element_kind { ELEMENT_OTHER, ELEMENT_GPU, ELEMENT_SHARED };

/* One element of a request: [gres/]NAME[:TYPE][:COUNT], where = may stand for the last colon. */
struct element {
	const char *start, *end;
	enum element_kind kind;
	const char *name_end;
	const char *type; /* NULL: none */
	size_t type_len;
	uint64_t count;
	bool count_ok;
};

static bool same_word(const char *s, size_t len, const char *word)
{
	return strlen(word) == len && !strncasecmp(s, word, len);
}

/* Slurm takes a suffix of 1024s in a count, and others that nobody needs for GPUs. */
static bool parse_count(const char *s, size_t len, uint64_t *count)
{
	uint64_t n = 0;
	size_t i = 0;

	for (; i < len && s[i] >= '0' && s[i] <= '9'; i++) {
		n = n * 10 + (uint64_t)(s[i] - '0');
		if (n > GPUS_MAX)
			return false;
	}
	if (i == 0)
		return false;
	if (i + 1 == len && (s[i] == 'k' || s[i] == 'K')) {
		n *= 1024;
		i++;
	}
	*count = n;
	return i == len && n <= GPUS_MAX;
}

/* TYPE:COUNT, TYPE or COUNT between s and end. Slurm takes what begins with a digit for a count. */
static void parse_type_and_count(const char *s, const char *end, struct element *e)
{
	size_t len = (size_t)(end - s);
	size_t type_len = 0;

	while (type_len < len && s[type_len] != ':' && s[type_len] != '=')
		type_len++;
	e->count = 1;
	if (type_len < len) {
		e->type = s;
		e->type_len = type_len;
		e->count_ok =
		    type_len > 0 && parse_count(s + type_len + 1, len - type_len - 1, &e->count);
	} else if (len && s[0] >= '0' && s[0] <= '9') {
		e->count_ok = parse_count(s, len, &e->count);
	} else {
		e->type = len ? s : NULL;
		e->type_len = len;
		e->count_ok = len > 0;
	}
}

static void parse_element(const char *start, const char *end, struct element *e)
{
	const char *name = start;
	size_t name_len = 0;

	*e = (struct element){.start = start, .end = end, .count_ok = true, .count = 1};
	if (end - start > 5 && (!strncasecmp(start, "gres/", 5) || !strncasecmp(start, "gres:", 5)))
		name += 5;
	while (name + name_len < end && name[name_len] != ':' && name[name_len] != '=')
		name_len++;
	e->name_end = name + name_len;
	if (same_word(name, name_len, "gpu"))
		e->kind = ELEMENT_GPU;
	else if (same_word(name, name_len, "shard") || same_word(name, name_len, "seat"))
		e->kind = ELEMENT_SHARED;
	else
		return;
	if (e->name_end < end)
		parse_type_and_count(e->name_end + 1, end, e);
}

/*
 * Slurm takes "gres" from anywhere in an element: "xgres/gpu:1" is a GPU for it, though no TRES is
 * called so. Slurm itself writes it at the start alone.
 */
static bool hides_gpus(const struct element *e)
{
	bool plain = e->kind != ELEMENT_OTHER;

	for (const char *s = e->start; e->end - s > 5; s++) {
		struct element inner;

		if (strncasecmp(s, "gres", 4) || !strchr("/:=", s[4]))
			continue;
		if (s == e->start && plain)
			continue;
		parse_element(s + 5, e->end, &inner);
		if (inner.kind != ELEMENT_OTHER)
			return true;
	}
	return false;
}

static const char *element_end(const char *s)
{
	return s + strcspn(s, ",;");
}

static bool is_position_type(const char *type, size_t len)
{
	if (len < 2 || len > 3 || type[0] != 'g')
		return false;
	for (size_t i = 1; i < len; i++)
		if (type[i] < '0' || type[i] > '9')
			return false;
	return true;
}

static bool has_model(const struct element *e)
{
	return e->type && !is_position_type(e->type, e->type_len);
}

static bool can_be_feature(const char *name, size_t len)
{
	if (!len || len > MODEL_NAME_MAX)
		return false;
	for (size_t i = 0; i < len; i++) {
		char c = name[i];
		bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
			  (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';

		if (!ok)
			return false;
	}
	return true;
}

static void note_model(const struct element *e, struct tres_found *found)
{
	if (!can_be_feature(e->type, e->type_len)) {
		found->bad_model = true;
	} else if (!found->model[0]) {
		memcpy(found->model, e->type, e->type_len);
		found->model[e->type_len] = '\0';
	} else if (strlen(found->model) != e->type_len ||
		   strncmp(found->model, e->type, e->type_len)) {
		found->several_models = true;
	}
}

void tres_scan(const char *tres, struct tres_found *found)
{
	const char *s = tres ? tres : "";

	for (; *s; s += *s != '\0') {
		struct element e;

		parse_element(s, element_end(s), &e);
		s = e.end;
		found->hidden |= hides_gpus(&e);
		if (e.kind == ELEMENT_SHARED)
			found->shared = true;
		found->seat |= e.kind == ELEMENT_SHARED && e.name_end - e.start >= 4 &&
			       !strncasecmp(e.name_end - 4, "seat", 4);
		if (e.kind != ELEMENT_GPU)
			continue;
		/* Slurm reads more suffixes than we do, and multiplies without a bound. */
		found->bad_count |= !e.count_ok;
		if (!e.count_ok || e.count == 0)
			continue;
		found->gpu = true;
		found->gpus += e.count;
		if (e.type && is_position_type(e.type, e.type_len))
			found->position_type = true;
		else if (e.type)
			note_model(&e, found);
	}
}

/*
 * What stripping needs to know before it writes: is there a model at all, and is every element
 * clear enough to be added up?
 */
static bool strippable(const char *s, void (*parse)(const char *, const char *, struct element *),
		       uint64_t *sum)
{
	bool models = false;

	for (*sum = 0; *s; s += *s != '\0') {
		struct element e;

		parse(s, element_end(s), &e);
		s = e.end;
		if (e.kind != ELEMENT_GPU)
			continue;
		if (!e.count_ok || (e.type && !has_model(&e)))
			return false;
		models |= has_model(&e);
		*sum += e.count;
	}
	return models && *sum <= GPUS_MAX;
}

/* All GPUs as one element with the first one's spelling: "gres/gpu:a100=2" gives "gres/gpu=2". */
static void add_stripped(struct text *out, const struct element *e, uint64_t sum)
{
	bool equals = memchr(e->name_end, '=', (size_t)(e->end - e->name_end));

	text_add_bytes(out, e->start, (size_t)(e->name_end - e->start));
	text_addf(out, "%c%" PRIu64, equals ? '=' : ':', sum);
}

bool tres_strip_models(char *tres)
{
	size_t len = strlen(tres);
	struct text out;
	bool gpu_written = false, changed;
	uint64_t sum;

	if (!strippable(tres, parse_element, &sum))
		return false;
	text_init(&out, len);
	for (const char *s = tres; *s; s += *s != '\0') {
		struct element e;

		parse_element(s, element_end(s), &e);
		s = e.end;
		if (e.kind == ELEMENT_GPU && gpu_written)
			continue;
		if (out.len)
			text_add_bytes(&out, e.start - 1, 1);
		if (e.kind == ELEMENT_GPU)
			add_stripped(&out, &e, sum);
		else
			text_add_bytes(&out, e.start, (size_t)(e.end - e.start));
		gpu_written |= e.kind == ELEMENT_GPU;
	}
	changed = !out.failed;
	if (changed)
		memcpy(tres, text_str(&out), out.len + 1);
	text_free(&out);
	return changed;
}

static void parse_bare(const char *start, const char *end, struct element *e)
{
	*e = (struct element){.start = start, .end = end, .kind = ELEMENT_GPU};
	parse_type_and_count(start, end, e);
}

bool gpus_strip_models(char *gpus)
{
	char count[24];
	uint64_t sum;

	if (!strippable(gpus, parse_bare, &sum))
		return false;
	/* "1k" may be written out longer than it stood. */
	if ((size_t)snprintf(count, sizeof(count), "%" PRIu64, sum) > strlen(gpus))
		return false;
	memcpy(gpus, count, strlen(count) + 1);
	return true;
}

/* A heterogeneous job's variables carry the component: SLURM_GPUS_HET_GROUP_1. */
static bool ends_name(const char *s)
{
	if (!strncmp(s, "_HET_GROUP_", 11) || !strncmp(s, "_PACK_GROUP_", 12)) {
		s = strrchr(s, '_') + 1;
		s += strspn(s, "0123456789");
	}
	return !*s;
}

bool env_strip_models(char *entry)
{
	static const struct {
		const char *name;
		bool (*strip)(char *value);
	} requests[] = {
	    {"SLURM_GPUS_PER_NODE", gpus_strip_models},
	    {"SLURM_GPUS_PER_TASK", gpus_strip_models},
	    {"SLURM_GPUS_PER_SOCKET", gpus_strip_models},
	    {"SLURM_GPUS", gpus_strip_models},
	    {"SLURM_TRES_PER_TASK", tres_strip_models},
	    {"SLURM_STEP_GRES", tres_strip_models},
	    {"SLURM_GRES", tres_strip_models},
	};
	char *equals;
	bool changed = false;

	if (strncmp(entry, "SLURM_", 6))
		return false;
	equals = strchr(entry, '=');
	if (!equals)
		return false;
	*equals = '\0';
	for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
		size_t len = strlen(requests[i].name);

		if (strncmp(entry, requests[i].name, len) || !ends_name(entry + len))
			continue;
		changed = requests[i].strip(equals + 1);
		break;
	}
	*equals = '=';
	return changed;
}

void tres_keep_others(const char *tres, struct text *out)
{
	const char *s = tres ? tres : "";

	for (; *s; s += *s != '\0') {
		struct element e;

		parse_element(s, element_end(s), &e);
		s = e.end;
		if (e.kind != ELEMENT_OTHER || e.start == e.end)
			continue;
		if (out->len)
			text_add(out, ",");
		text_add_bytes(out, e.start, (size_t)(e.end - e.start));
	}
}

uint32_t tres_per_gpu(const char *per_tres)
{
	struct tres_found found = {0};

	tres_scan(per_tres, &found);
	return (uint32_t)(found.gpus <= GPUS_MAX ? found.gpus : 0);
}
