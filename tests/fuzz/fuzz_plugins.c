/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer target for all that the plugins parse: berthd's reply and its list of pinned jobs,
 * berth.conf, request strings, flags, segments, share files, lists of paths. The first byte chooses
 * the parser. Beside the sanitizers there is an oracle: what a parser lets through must obey the
 * formats, or the target aborts.
 */
#include <endian.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "config/config.h"
#include "text/hostlist.h"
#include "config/options.h"
#include "text/path_list.h"
#include "pin/pinned.h"
#include "reply/reply.h"
#include "pin/segment.h"
#include "node/share_file.h"
#include "text/tres.h"

#define NONCE "0123456789abcdef"

/* Not assert(): the oracle must hold in every build. */
#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "oracle: %s is not so\n", #condition);                     \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

/* The only nodes of this world: n1 to n9. */
static bool node_exists(const char *name)
{
	return name[0] == 'n' && name[1] >= '1' && name[1] <= '9' && !name[2];
}

static char *copy_of(const uint8_t *data, size_t size)
{
	char *copy = malloc(size + 1);

	MUST(copy);
	memcpy(copy, data, size);
	copy[size] = '\0';
	return copy;
}

static void must_be_printable(const char *s, size_t max, const char *forbidden)
{
	MUST(strlen(s) <= max);
	for (; *s; s++)
		MUST(*s >= 0x20 && *s <= 0x7e && !strchr(forbidden, *s));
}

static void check_nodes(const struct reply *reply)
{
	char *nodes = strdup(reply->nodes);
	size_t count = 0;
	unsigned int seen = 0;
	char *save = NULL;

	MUST(nodes && *nodes != ',' && nodes[strlen(nodes) - 1] != ',' && !strstr(nodes, ",,"));
	for (char *name = strtok_r(nodes, ",", &save); name; name = strtok_r(NULL, ",", &save)) {
		MUST(node_exists(name));
		MUST(!(seen & (1u << (name[1] - '0'))));
		seen |= 1u << (name[1] - '0');
		count++;
	}
	free(nodes);
	MUST(count == reply->node_count);
	for (size_t i = 0; i < reply->gpu_count; i++)
		MUST(reply->gpus[i] < GPU_POSITIONS && (!i || reply->gpus[i] > reply->gpus[i - 1]));
}

static bool stands_apart(const char *name, const void *nodes)
{
	return node_exists(name) && !strstr(nodes, name);
}

/* Slurm refuses a submission that excludes a node it does not know, or one that it requires. */
static void check_others(const struct reply *reply)
{
	MUST(strlen(reply->exc_nodes) > 0);
	MUST(hostlist_all(reply->exc_nodes, 1000, stands_apart, reply->nodes));
}

static void check_gpus(const struct reply *reply, const struct reply_expected *expected)
{
	if (reply->verb == REPLY_PLACE)
		check_nodes(reply);
	else
		MUST(!reply->nodes && !reply->seats && !reply->exc_nodes);
	if (reply->exc_nodes)
		check_others(reply);
	MUST(reply->node_count >= 1 && reply->node_count <= REPLY_MAX_NODES);
	MUST(reply->gpu_count >= 1 && reply->gpu_count <= GPU_POSITIONS);
	if (expected->gpus)
		MUST(reply->node_count * reply->gpu_count == expected->gpus);
	else
		MUST(reply->gpu_count == expected->gpus_per_node);
	if (reply->min_cpus)
		MUST(expected->cpus_per_tres && reply->min_cpus >= expected->min_cpus &&
		     reply->min_cpus <= MIN_CPUS_MAX);
	MUST(reply->mem_per_node <= MEM_PER_NODE_MAX);
	if (reply->share)
		MUST(reply->share >= expected->share && expected->share && reply->share <= 100 &&
		     !reply->seats && (reply->way || reply->verb == REPLY_LATER));
	else
		MUST(!(reply->way && reply->seats) && (reply->way || !reply->gpu_mem));
	if (reply->guest)
		MUST(expected->batch && !reply->seats && !reply->share &&
		     reply->node_count * reply->gpu_count == 1 &&
		     (reply->way || reply->verb == REPLY_LATER));
	MUST(reply->gpu_mem <= GPU_MEM_MAX);
	MUST(reply->segment);
}

static void fuzz_reply(const uint8_t *data, size_t size)
{
	static struct reply reply;
	struct reply_expected expected = {
	    .nonce = NONCE,
	    .node_exists = node_exists,
	};
	char error[REPLY_ERROR_MAX] = "";

	if (size < 1)
		return;
	expected.gpus = data[0] & 7;
	expected.gpus_per_node = (data[0] >> 3) & 7;
	expected.cpus_per_tres = data[0] & 64;
	expected.min_cpus = data[0] & 128 ? 12 : 0;
	expected.share = data[0] & 32 ? 30 : 0;
	expected.batch = !(data[0] & 32);
	data++;
	size--;
	/* A longer datagram is only reported by its length; there is no more text than that. */
	memcpy(reply.text, data, size < REPLY_MAX_BYTES ? size : REPLY_MAX_BYTES);
	if (!reply_parse(&reply, size, &expected, error)) {
		MUST(*error);
		return;
	}
	if (reply.segment)
		must_be_printable(reply.segment, SEGMENT_BODY_MAX, "[]");
	if (reply.message)
		must_be_printable(reply.message, MESSAGE_MAX, "");
	if (reply.verb == REPLY_REFUSE)
		MUST(reply.message && *reply.message);
	MUST(reply.verb == REPLY_BUSY ? reply.seconds >= 1 && reply.seconds <= BUSY_SECONDS_MAX
				      : !reply.seconds);
	if (reply.verb == REPLY_PLACE || reply.verb == REPLY_LATER)
		check_gpus(&reply, &expected);
	else
		MUST(!reply.nodes && !reply.gpu_count && !reply.min_cpus && !reply.mem_per_node &&
		     !reply.share && !reply.way);
}

static void fuzz_config(const uint8_t *data, size_t size)
{
	struct hook_config config, defaults;
	char error[CONFIG_ERROR_MAX] = "";
	char *content = copy_of(data, size);

	memset(&config, 0, sizeof(config));
	memset(&defaults, 0, sizeof(defaults));
	config_defaults(&defaults);
	if (!config_parse(content, &config, error)) {
		MUST(*error && strlen(error) < CONFIG_ERROR_MAX);
		MUST(!strcmp(config.socket, defaults.socket) &&
		     config.deadline_ms == defaults.deadline_ms && !config.fail_closed);
	}
	MUST(memchr(config.socket, '\0', sizeof(config.socket)));
	MUST(!*config.socket || *config.socket == '/');
	MUST(memchr(config.hook_log, '\0', sizeof(config.hook_log)));
	MUST(memchr(config.pinned_file, '\0', sizeof(config.pinned_file)));
	MUST(memchr(config.skip_partitions, '\0', sizeof(config.skip_partitions)));
	MUST(config.deadline_ms >= 1 && config.deadline_ms <= 1000);
	MUST(config.breaker_seconds >= 1);
	MUST(config.def_cpu_per_gpu <= 1024);
	config_skips(&config, content);
	free(content);
}

static void fuzz_tres(const uint8_t *data, size_t size)
{
	struct tres_found before = {0}, after = {0};
	char *tres = copy_of(data, size);
	struct text others;

	tres_scan(tres, &before);
	if (tres_strip_models(tres)) {
		tres_scan(tres, &after);
		MUST(strlen(tres) <= size);
		MUST(after.gpus == before.gpus && after.gpu == before.gpu);
		MUST(!after.model[0] && !after.bad_model && after.shared == before.shared);
	}
	text_init(&others, FOREIGN_TEXT_MAX);
	tres_keep_others(tres, &others);
	after = (struct tres_found){0};
	tres_scan(text_str(&others), &after);
	MUST(!after.gpu && !after.shared);
	text_free(&others);
	free(tres);

	tres = copy_of(data, size);
	gpus_strip_models(tres);
	MUST(strlen(tres) <= size);
	free(tres);
	tres = copy_of(data, size);
	env_strip_models(tres);
	MUST(strlen(tres) <= size);
	free(tres);
}

static void fuzz_segment(const uint8_t *data, size_t size)
{
	char *foreign = copy_of(data, size);
	struct text once, twice;

	text_init(&once, FOREIGN_TEXT_MAX + SEGMENT_BODY_MAX);
	text_init(&twice, FOREIGN_TEXT_MAX + SEGMENT_BODY_MAX);
	segment_set(&once, foreign, "a=1");
	if (!once.failed) {
		MUST(strstr(text_str(&once), "[berth/1 a=1]"));
		MUST(segment_claimed(text_str(&once)));
		/* Writing again changes nothing: no copy grows at each change. */
		segment_set(&twice, text_str(&once), "a=1");
		MUST(!strcmp(text_str(&once), text_str(&twice)) ||
		     strlen(text_str(&twice)) < strlen(text_str(&once)));
	}
	text_free(&once);
	text_free(&twice);
	free(foreign);
}

static void fuzz_flags(const uint8_t *data, size_t size)
{
	char *entry = copy_of(data, size);
	const struct berth_option *option;
	const char *value;
	struct text out;
	char *back;

	option = option_in_env(entry, "", &value);
	if (option)
		option_value_ok(option, value);
	for (size_t i = 0; i < berth_option_count; i++)
		if (option_value_ok(&berth_options[i], entry))
			MUST(strlen(entry) <= FLAG_VALUE_MAX);

	text_init(&out, REQUEST_MAX_BYTES);
	text_add_escaped(&out, entry);
	if (!out.failed) {
		back = strdup(text_str(&out));
		MUST(back && unescape(back) && !strcmp(back, entry));
		free(back);
	}
	text_free(&out);

	text_init(&out, FOREIGN_TEXT_MAX);
	if (features_join(entry, "a100", &out) == JOIN_OK && !out.failed)
		MUST(strstr(text_str(&out), "a100"));
	text_free(&out);
	free(entry);
}

/* The input as a file, whatever it holds: an id is only found where it stands behind the header. */
static void fuzz_pinned(const uint8_t *data, size_t size)
{
	static int fd = -1;
	static char path[32];
	char *name = copy_of(data, size);
	uint32_t id = pinned_record_id(name);
	bool stands = false;
	size_t step = 0;

	MUST(!pinned_array_id(name) || strchr(name, '_'));
	free(name);
	if (size >= 16 && !memcmp(data, "berth-pinned/2\n", 16))
		step = 8;
	if (fd < 0) {
		fd = memfd_create("pinned", 0);
		MUST(fd >= 0);
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	}
	MUST(!ftruncate(fd, 0) && pwrite(fd, data, size, 0) == (ssize_t)size);
	for (size_t at = 16; at + step <= size && step; at += step) {
		uint32_t stored;

		memcpy(&stored, data + at, sizeof(stored));
		id = at == 16 ? le32toh(stored) : id;
		stands |= le32toh(stored) == id;
	}
	if (pinned_kinds(path, id))
		MUST(stands);
}

static void fuzz_share_file(const uint8_t *data, size_t size)
{
	static struct share_file file;
	char error[SHARE_ERROR_MAX] = "";

	memcpy(file.text, data, size < SHARE_FILE_MAX ? size : SHARE_FILE_MAX);
	if (!share_file_parse(&file, size, 42, error)) {
		must_be_printable(error, SHARE_ERROR_MAX, "");
		MUST(*error);
		return;
	}
	MUST(file.job == 42 && size <= SHARE_FILE_MAX);
	must_be_printable(file.why, MESSAGE_MAX, "");
	MUST(file.minor_count <= GPU_POSITIONS && file.variable_count <= SHARE_VARIABLES_MAX);
	for (size_t i = 0; i < file.minor_count; i++)
		MUST(file.minors[i] < DEVICE_MINORS);
	for (size_t i = 0; i < file.variable_count; i++) {
		const char *name = file.variables[i].name;

		MUST(*name && strlen(name) <= WIRE_KEY_MAX && !strpbrk(name, "= \n"));
		MUST(!file.variables[i].value || strlen(file.variables[i].value) < size);
		MUST(!file.variables[i].prepended || path_list_element_ok(file.variables[i].value));
	}
}

/* A line with the element, and the list. What is put in comes out again, and nothing else does. */
static void fuzz_path_list(const uint8_t *data, size_t size)
{
	char *list = copy_of(data, size);
	char *element = strsep(&list, "\n");
	const char *separators = path_list_separators(size & 1 ? "LD_PRELOAD" : "PYTHONPATH");
	struct text without, with, again;

	text_init(&without, FOREIGN_TEXT_MAX);
	text_init(&with, FOREIGN_TEXT_MAX);
	text_init(&again, FOREIGN_TEXT_MAX);
	if (list && path_list_element_ok(element)) {
		path_list_remove(list, element, separators, &without);
		MUST(!path_list_has(text_str(&without), element, separators));
		MUST(path_list_has(list, element, separators) || !strcmp(text_str(&without), list));
		path_list_prepend(text_str(&without), element, &with);
		MUST(path_list_has(text_str(&with), element, separators));
		path_list_remove(text_str(&with), element, separators, &again);
		MUST(!strcmp(text_str(&again), text_str(&without)));
	}
	text_free(&without);
	text_free(&with);
	text_free(&again);
	free(element);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const parsers[])(const uint8_t *, size_t) = {
	    fuzz_reply, fuzz_config, fuzz_tres,	      fuzz_segment,
	    fuzz_flags, fuzz_pinned, fuzz_share_file, fuzz_path_list,
	};

	if (size > 0)
		parsers[data[0] % (sizeof(parsers) / sizeof(parsers[0]))](data + 1, size - 1);
	return 0;
}
