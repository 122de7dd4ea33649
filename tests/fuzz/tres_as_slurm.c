/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our reading of TRES requests beside that of the very Slurm that it is for: slurm_get_next_tres()
 * out of libslurmfull, called as gres.c calls it. Random texts of a grammar, changed at random, are
 * read by both. The program ends with 1 at the first text that
 *
 *   - has a GPU, shard or seat for Slurm that ours neither reads with the same type and number nor
 *     refuses,
 *   - has GPUs for ours that Slurm does not read,
 *   - loses or gains something for Slurm when GPUs or their models are taken out of it.
 *
 *   tres-as-slurm LIBSLURMFULL COUNT [SEED]     COUNT texts; the same seed draws the same texts
 *   tres-as-slurm LIBSLURMFULL - <FILE          the lines of a file, and how both read each
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "text/tres.h"

#define TEXT_MAX 400
#define READ_MAX 128

/* src/common/slurm_protocol_defs.h, the same from 24.11 to 26.05. */
static int (*next_tres)(char **tres_type, char *in_val, char **name, char **type, uint64_t *count,
			char **save);
static void (*release)(void **item);
/* What sbatch and its like make of --gres. */
static char *(*prepend)(const char *gres);

struct one {
	char name[TEXT_MAX], type[TEXT_MAX];
	bool typed;
	uint64_t count;
};

struct reading {
	struct one all[READ_MAX];
	size_t count;
	bool failed; /* Slurm refuses the whole request */
};

static void must(bool holds, const char *what, const char *text)
{
	if (holds)
		return;
	printf("difference: %s: \"", what);
	for (; *text; text++)
		printf(*text >= ' ' && *text <= '~' && *text != '\\' ? "%c" : "\\x%02x",
		       (unsigned char)*text);
	printf("\"\n");
	exit(1);
}

/* As _get_next_job_gres() goes through a field: a nameless element ends it. */
static void read_as_slurm(const char *text, struct reading *as)
{
	char copy[2 * TEXT_MAX], *in = copy, *save = NULL, *kind = "gres";

	snprintf(copy, sizeof(copy), "%s", text);
	as->count = 0;
	as->failed = false;
	for (;;) {
		char *name = NULL, *type = NULL;
		uint64_t count = 0;
		bool more;

		/* Beside an empty rest the call before has left nothing behind. */
		if (save && !*save)
			return;
		as->failed = next_tres(&kind, in, &name, &type, &count, &save) != 0;
		more = !as->failed && name;
		if (more) {
			struct one *one = &as->all[as->count++];

			snprintf(one->name, TEXT_MAX, "%s", name);
			snprintf(one->type, TEXT_MAX, "%s", type ? type : "");
			one->typed = type != NULL;
			one->count = count;
		}
		release((void **)&name);
		release((void **)&type);
		if (!more || !save || as->count == READ_MAX)
			return;
		in = NULL;
	}
}

static bool is(const struct one *one, const char *name)
{
	return !strcmp(one->name, name);
}

static bool of_gpus(const struct one *one)
{
	return is(one, "gpu") || is(one, "shard") || is(one, "seat");
}

/* GPUs in all and their only type. One GRES that is named twice has its last number. */
struct gpus {
	uint64_t count;
	const char *type;
	bool any, mixed, positions, shared, seat;
};

static struct gpus gpus_of(const struct reading *as)
{
	struct gpus gpus = {.type = ""};

	for (size_t i = 0; i < as->count; i++) {
		const struct one *one = &as->all[i];
		size_t digits = strspn(one->type + 1, "0123456789");

		gpus.shared |= is(one, "shard") || is(one, "seat");
		gpus.seat |= is(one, "seat");
		if (!is(one, "gpu"))
			continue;
		gpus.positions |=
		    one->type[0] == 'g' && digits >= 1 && digits <= 2 && !one->type[1 + digits];
		gpus.mixed |= gpus.any && strcmp(gpus.type, one->type) != 0;
		gpus.any = true;
		gpus.type = one->type;
		gpus.count = one->count;
	}
	return gpus;
}

static bool refused(const struct tres_found *found)
{
	return found->hidden || found->shared || found->position_type || found->bad_count ||
	       found->bad_model || found->several_models;
}

static void compare_readings(const char *text, const struct reading *as,
			     const struct tres_found *found)
{
	struct gpus gpus = gpus_of(as);

	must(!gpus.shared || found->shared || found->hidden, "shards or seats not seen", text);
	must(!gpus.seat || found->seat || found->hidden, "seats not seen", text);
	must(!gpus.positions || refused(found), "positions not seen", text);
	if (refused(found))
		return;
	must(gpus.any == found->gpu, "GPUs for one of both only", text);
	/* Slurm refuses GPUs with a type beside others without, and several types are refused. */
	if (gpus.mixed)
		return;
	must(gpus.count == found->gpus, "another number of GPUs", text);
	must(!strcmp(gpus.type, found->model), "another model", text);
}

static bool same_others(const struct reading *before, const struct reading *after)
{
	size_t j = 0;

	for (size_t i = 0; i < before->count; i++) {
		const struct one *one = &before->all[i];

		if (of_gpus(one))
			continue;
		while (j < after->count && of_gpus(&after->all[j]))
			j++;
		if (j == after->count || strcmp(one->name, after->all[j].name) != 0 ||
		    strcmp(one->type, after->all[j].type) != 0 || one->count != after->all[j].count)
			return false;
		j++;
	}
	while (j < after->count && of_gpus(&after->all[j]))
		j++;
	return j == after->count && before->failed == after->failed;
}

static void take_gpus_out(const char *text, const struct reading *as)
{
	struct reading after;
	struct text others;

	text_init(&others, FOREIGN_TEXT_MAX);
	tres_keep_others(text, &others);
	read_as_slurm(text_str(&others), &after);
	text_free(&others);
	must(!gpus_of(&after).any && !gpus_of(&after).shared, "GPUs are left", text);
	must(same_others(as, &after), "not all that is beside GPUs is left", text);
}

static void same_without_models(const char *text, const struct reading *as, const char *stripped)
{
	struct gpus before = gpus_of(as), after;
	struct reading again;

	read_as_slurm(stripped, &again);
	after = gpus_of(&again);
	must(!*after.type && (before.mixed || before.count == after.count),
	     "other GPUs without models", text);
	must(same_others(as, &again), "more than models is taken out", text);
}

/* The same words as --gres has them: there "gres/" may be left out, and sbatch puts it in. */
static void compare_option(const char *text)
{
	struct tres_found found = {0};
	struct reading before;
	char stripped[TEXT_MAX], *whole = prepend(text);

	read_as_slurm(whole, &before);
	tres_scan(whole, &found);
	if (!before.failed) {
		compare_readings(whole, &before, &found);
		snprintf(stripped, sizeof(stripped), "%s", text);
		if (!refused(&found) && gres_strip_models(stripped)) {
			char *after = prepend(stripped);

			same_without_models(text, &before, after);
			release((void **)&after);
		}
	}
	release((void **)&whole);
}

/* "gpu:" is what sbatch writes before each word of --gpus. */
static void compare_gpus_option(const char *text)
{
	char whole[TEXT_MAX * 11] = "", stripped[TEXT_MAX], words[TEXT_MAX], *save = NULL;
	const char *values[2] = {text, stripped};
	struct tres_found found = {0};
	struct reading before, after;

	snprintf(stripped, sizeof(stripped), "%s", text);
	if (!gpus_strip_models(stripped))
		return;
	for (size_t i = 0; i < 2; i++) {
		size_t used = 0;

		snprintf(words, sizeof(words), "%s", values[i]);
		for (char *word = strtok_r(words, ",", &save); word;
		     word = strtok_r(NULL, ",", &save))
			used += (size_t)snprintf(whole + used, sizeof(whole) - used,
						 "%sgres/gpu:%s", used ? "," : "", word);
		if (used >= 2 * TEXT_MAX)
			return;
		read_as_slurm(whole, i ? &after : &before);
		if (!i)
			tres_scan(whole, &found);
	}
	if (before.failed || refused(&found) || gpus_of(&before).mixed)
		return;
	must(!after.failed && !*gpus_of(&after).type &&
		 gpus_of(&before).count == gpus_of(&after).count,
	     "other GPUs by --gpus without models", text);
}

static bool names_any(const char *text)
{
	return strcasestr(text, "gpu") || strcasestr(text, "shard") || strcasestr(text, "seat");
}

static uint64_t agreed, refusals, by_slurm;

static void compare(const char *text)
{
	struct tres_found found = {0};
	struct reading as;

	read_as_slurm(text, &as);
	tres_scan(text, &found);
	must(!refused(&found) || names_any(text), "a refusal without a reason", text);
	compare_option(text);
	compare_gpus_option(text);
	by_slurm += as.failed;
	refusals += refused(&found);
	if (refused(&found)) {
		if (!as.failed)
			compare_readings(text, &as, &found);
		return;
	}
	take_gpus_out(text, &as);
	/* What Slurm refuses it refuses as a whole. */
	if (!as.failed) {
		char stripped[TEXT_MAX];

		compare_readings(text, &as, &found);
		agreed += found.gpu;
		snprintf(stripped, sizeof(stripped), "%s", text);
		if (tres_strip_models(stripped))
			same_without_models(text, &as, stripped);
	}
}

/* xorshift64*: enough for drawing, and the same everywhere. */
static uint64_t state;

static size_t draw(size_t below)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (size_t)((state * 2685821657736338717ULL) >> 33) % below;
}

#define PICK(words) ((words)[draw(sizeof(words) / sizeof((words)[0]))])

static const char *const kinds[] = {
    "gres/",  "gres/", "gres/",	   "gres:",  "gres=",	     "gres",	  "",
    "xgres/", "GRES/", "license/", "gres//", "license/gres", "gres/gres/"};
static const char *const names[] = {"gpu", "gpu",  "gpu", "shard", "seat", "nic",
				    "GPU", "gpux", "cpu", "",	   "mps",  "gres"};
static const char *const types[] = {"a100",	"a100",	   "h100", "g0",     "g12", "g",
				    "g100",	"gtx1080", "1",	   "1080ti", "",    "gpu",
				    "gres/gpu", "a b",	   "-1",   "a;b",    "many"};
static const char *const counts[] = {"1",
				     "2",
				     "2",
				     "0",
				     "16",
				     "007",
				     "1k",
				     "2K",
				     "1KiB",
				     "2kb",
				     "3m",
				     "0m",
				     "1P",
				     "1000000",
				     "1000001",
				     "99999999999",
				     "1x",
				     "+2",
				     "",
				     "18446744073709551615",
				     "18446744073709551616",
				     "16777216t",
				     " 1"};
static const char *const signs[] = {":", ":", ":", "=", "/", "", "::", ";", ",", "=="};

static size_t add(char *text, size_t len, const char *word)
{
	int added = snprintf(text + len, TEXT_MAX - len, "%s", word);

	return len + (size_t)added < TEXT_MAX ? len + (size_t)added : len;
}

/* What people write, mostly, and what they might. */
static size_t draw_element(char *text, size_t len)
{
	bool wild = !draw(3);

	len = add(text, len, wild ? PICK(kinds) : "gres/");
	len = add(text, len, PICK(names));
	if (draw(2)) {
		len = add(text, len, wild ? PICK(signs) : ":");
		len = add(text, len, wild ? PICK(types) : types[draw(5)]);
	}
	if (draw(3)) {
		len = add(text, len, wild ? PICK(signs) : draw(2) ? ":" : "=");
		len = add(text, len, wild ? PICK(counts) : counts[draw(7)]);
	}
	return len;
}

static void draw_soup(char *text)
{
	size_t len = 0;

	for (size_t words = 1 + draw(12); words; words--) {
		switch (draw(5)) {
		case 0:
			len = add(text, len, PICK(kinds));
			break;
		case 1:
			len = add(text, len, PICK(names));
			break;
		case 2:
			len = add(text, len, PICK(types));
			break;
		case 3:
			len = add(text, len, PICK(counts));
			break;
		default:
			len = add(text, len, PICK(signs));
		}
	}
}

static void mutate(char *text)
{
	static const char letters[] = "gpures/:=,;0123456789kKgG xhadt\t\n\x80\xff";
	size_t len = strlen(text), at = draw(len + 1);
	char letter = letters[draw(sizeof(letters) - 1)];

	switch (draw(3)) {
	case 0:
		if (at < len)
			text[at] = letter;
		break;
	case 1:
		if (at < len)
			memmove(text + at, text + at + 1, len - at);
		break;
	default:
		if (len + 1 >= TEXT_MAX)
			return;
		memmove(text + at + 1, text + at, len - at + 1);
		text[at] = letter;
	}
}

static void draw_text(char *text)
{
	size_t len = 0;

	*text = '\0';
	if (draw(4)) {
		for (size_t elements = 1 + draw(3); elements; elements--) {
			len = draw_element(text, len);
			if (elements > 1)
				len = add(text, len, ",");
		}
	} else {
		draw_soup(text);
	}
	for (size_t changes = draw(2) ? draw(5) : 0; changes; changes--)
		mutate(text);
}

static bool load(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);

	if (!library) {
		fprintf(stderr, "tres-as-slurm: %s\n", dlerror());
		return false;
	}
	*(void **)&next_tres = dlsym(library, "slurm_get_next_tres");
	*(void **)&release = dlsym(library, "slurm_xfree");
	*(void **)&prepend = dlsym(library, "gres_prepend_tres_type");
	return next_tres && release && prepend;
}

static void show(const char *text)
{
	struct tres_found found = {0};
	struct reading as;

	read_as_slurm(text, &as);
	tres_scan(text, &found);
	printf("%s\n  Slurm:", text);
	for (size_t i = 0; i < as.count; i++)
		printf(" %s%s%s %" PRIu64, as.all[i].name, as.all[i].typed ? ":" : "",
		       as.all[i].type, as.all[i].count);
	printf("%s\n  ours: gpus=%" PRIu64 " model=%s%s%s%s%s%s%s\n", as.failed ? " (refused)" : "",
	       found.gpus, found.model, found.position_type ? " position" : "",
	       found.shared ? " shared" : "", found.hidden ? " hidden" : "",
	       found.bad_count ? " bad_count" : "", found.bad_model ? " bad_model" : "",
	       found.several_models ? " several" : "");
}

static int lines(void)
{
	char text[TEXT_MAX];

	while (fgets(text, sizeof(text), stdin)) {
		text[strcspn(text, "\n")] = '\0';
		show(text);
		fflush(stdout);
		compare(text);
	}
	return 0;
}

int main(int argc, char **argv)
{
	char text[TEXT_MAX + 8];
	struct timespec start, end;
	uint64_t count;

	if (argc < 3 || !load(argv[1])) {
		fprintf(stderr, "usage: tres-as-slurm LIBSLURMFULL COUNT|- [SEED]\n");
		return 2;
	}
	if (!strcmp(argv[2], "-"))
		return lines();
	count = strtoull(argv[2], NULL, 10);
	/* Neighbouring seeds draw unlike texts; a state of 0 would draw nothing. */
	state = (argc > 3 ? strtoull(argv[3], NULL, 10) + 1 : 1) * 0x9e3779b97f4a7c15ULL;
	state = state ? state : 1;
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (uint64_t i = 0; i < count; i++) {
		draw_text(text);
		compare(text);
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("texts=%" PRIu64 " gpus_agreed=%" PRIu64 " refused=%" PRIu64
	       " refused_by_slurm=%" PRIu64 " differences=0 seconds=%.1f\n",
	       count, agreed, refusals, by_slurm,
	       (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9);
	return 0;
}
