/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tres.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "text/tres_element.h"

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
	struct element before = {.kind = ELEMENT_OTHER};
	bool nameless = false;

	for (; *s; s += *s != '\0') {
		struct element e;

		element_parse(s, element_end(s), &e);
		s = e.end;
		found->hidden |= e.hidden || (nameless && e.kind > ELEMENT_NAMELESS);
		nameless |= e.kind == ELEMENT_NAMELESS;
		found->shared |= e.kind == ELEMENT_SHARD || e.kind == ELEMENT_SEAT;
		found->seat |= e.kind == ELEMENT_SEAT;
		if (e.kind != ELEMENT_GPU)
			continue;
		/* Slurm reads more suffixes than we do, and multiplies without a bound. */
		found->bad_count |= !e.count_ok;
		if (!e.count_ok || e.count == 0)
			continue;
		found->gpu = true;
		found->gpus = element_add(found->gpus, &before, &e);
		if (e.type && is_position_type(e.type, e.type_len))
			found->position_type = true;
		else if (e.type)
			note_model(&e, found);
		before = e;
	}
}

/*
 * What stripping needs to know before it writes: is there a model at all, and is every element
 * clear enough to be added up?
 */
static bool strippable(const char *s, element_parser parse, uint64_t *sum)
{
	struct element before = {.kind = ELEMENT_OTHER};
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
		if (e.count) {
			*sum = element_add(*sum, &before, &e);
			before = e;
		}
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

static bool strip_models(char *tres, element_parser parse)
{
	size_t len = strlen(tres);
	struct text out;
	bool gpu_written = false, changed;
	uint64_t sum;

	if (!strippable(tres, parse, &sum))
		return false;
	text_init(&out, len);
	for (const char *s = tres; *s; s += *s != '\0') {
		struct element e;

		parse(s, element_end(s), &e);
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

bool tres_strip_models(char *tres)
{
	return strip_models(tres, element_parse);
}

bool gres_strip_models(char *gres)
{
	return strip_models(gres, element_parse_gres);
}

bool gpus_strip_models(char *gpus)
{
	char count[24];
	uint64_t sum;

	if (!strippable(gpus, element_parse_gpus, &sum))
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
	    {"SLURM_STEP_GRES", gres_strip_models},
	    {"SLURM_GRES", gres_strip_models},
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

		element_parse(s, element_end(s), &e);
		s = e.end;
		if (e.kind > ELEMENT_NAMELESS || e.start == e.end)
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
