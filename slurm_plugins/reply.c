/* SPDX-License-Identifier: Apache-2.0 */
#include "reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

enum reply_key {
	KEY_NONCE,
	KEY_NODES,
	KEY_GPUS,
	KEY_SEATS,
	KEY_K,
	KEY_N,
	KEY_MIN_CPUS,
	KEY_PN_MIN_CPUS,
	KEY_MEM_PER_NODE,
	KEY_SITE_FACTOR,
	KEY_SEGMENT,
	KEY_MESSAGE,
	KEY_COUNT
};

#define FOR_PLACE (1u << REPLY_PLACE)
#define FOR_LATER (1u << REPLY_LATER)
#define FOR_PASS (1u << REPLY_PASS)
#define FOR_REFUSE (1u << REPLY_REFUSE)
#define FOR_GPUS (FOR_PLACE | FOR_LATER)
#define FOR_ALL (FOR_GPUS | FOR_PASS | FOR_REFUSE)

static const struct {
	const char *name;
	unsigned int allowed;
	unsigned int needed;
} keys[KEY_COUNT] = {
    [KEY_NONCE] = {"nonce", FOR_ALL, FOR_ALL},
    [KEY_NODES] = {"nodes", FOR_PLACE, FOR_PLACE},
    [KEY_GPUS] = {"gpus", FOR_PLACE, FOR_PLACE},
    [KEY_SEATS] = {"seats", FOR_PLACE, FOR_PLACE},
    [KEY_K] = {"k", FOR_LATER, FOR_LATER},
    [KEY_N] = {"n", FOR_LATER, FOR_LATER},
    [KEY_MIN_CPUS] = {"min_cpus", FOR_GPUS, 0},
    [KEY_PN_MIN_CPUS] = {"pn_min_cpus", FOR_GPUS, 0},
    [KEY_MEM_PER_NODE] = {"mem_per_node", FOR_GPUS, 0},
    [KEY_SITE_FACTOR] = {"site_factor", FOR_GPUS, 0},
    /* Without it the request as the user wrote it could not be had back. */
    [KEY_SEGMENT] = {"segment", FOR_GPUS | FOR_PASS, FOR_GPUS},
    [KEY_MESSAGE] = {"message", FOR_ALL, FOR_REFUSE},
};

static bool fail(char error[REPLY_ERROR_MAX], const char *why)
{
	snprintf(error, REPLY_ERROR_MAX, "%s", why);
	return false;
}

static bool printable(const char *s, const char *forbidden, size_t max)
{
	size_t len = strlen(s);

	if (len > max)
		return false;
	for (size_t i = 0; i < len; i++)
		if (s[i] < 0x20 || s[i] > 0x7e || strchr(forbidden, s[i]))
			return false;
	return true;
}

static bool parse_verb(const char *line, enum reply_verb *verb)
{
	static const char *const lines[] = {
	    [REPLY_PLACE] = "berth/1 place",
	    [REPLY_LATER] = "berth/1 later",
	    [REPLY_PASS] = "berth/1 pass",
	    [REPLY_REFUSE] = "berth/1 refuse",
	};

	for (int i = REPLY_PLACE; i <= REPLY_REFUSE; i++) {
		if (!strcmp(line, lines[i])) {
			*verb = (enum reply_verb)i;
			return true;
		}
	}
	return false;
}

static bool store_line(char *line, enum reply_verb verb, char *values[KEY_COUNT],
		       char error[REPLY_ERROR_MAX])
{
	char *equals = strchr(line, '=');

	if (!equals)
		return fail(error, "a line is not key=value");
	*equals = '\0';
	for (int i = 0; i < KEY_COUNT; i++) {
		if (strcmp(line, keys[i].name))
			continue;
		if (values[i])
			return fail(error, "a key stands twice");
		if (!(keys[i].allowed & (1u << verb)))
			return fail(error, "a key does not belong to this verb");
		if (!unescape(equals + 1))
			return fail(error, "a value is not escaped as it must be");
		values[i] = equals + 1;
		return true;
	}
	return fail(error, "it has an unknown key");
}

static bool split_lines(struct reply *reply, size_t len, char *values[KEY_COUNT],
			char error[REPLY_ERROR_MAX])
{
	char *line = reply->text;
	unsigned int lines = 0;

	if (len == 0 || len > REPLY_MAX_BYTES)
		return fail(error, "it is empty or longer than 16384 bytes");
	reply->text[len] = '\0';
	if (strlen(reply->text) != len || reply->text[len - 1] != '\n')
		return fail(error, "it has a NUL byte or no newline at its end");
	while (*line) {
		char *end = strchr(line, '\n');

		*end = '\0';
		if (++lines > REPLY_MAX_LINES)
			return fail(error, "it has more than 64 lines");
		if (lines == 1) {
			if (!parse_verb(line, &reply->verb))
				return fail(error,
					    "it does not begin with berth/1 and a known verb");
		} else if (!store_line(line, reply->verb, values, error)) {
			return false;
		}
		line = end + 1;
	}
	for (int i = 0; i < KEY_COUNT; i++)
		if ((keys[i].needed & (1u << reply->verb)) && !values[i])
			return fail(error, "a needed key is missing");
	return true;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool node_name_ok(const char *name)
{
	size_t len = strlen(name);

	if (len == 0 || len > NODE_NAME_MAX)
		return false;
	for (size_t i = 0; i < len; i++) {
		char c = name[i];
		bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
			  (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';

		if (!ok)
			return false;
	}
	return true;
}

/* Each name is cut out for a moment only; the list keeps its commas. */
static bool check_nodes(struct reply *reply, char *nodes, bool (*exists)(const char *),
			char error[REPLY_ERROR_MAX])
{
	char *names[REPLY_MAX_NODES] = {NULL};
	size_t count = 0;
	char *name = nodes;
	bool ok = true;

	while (name && ok) {
		char *comma = strchr(name, ',');

		if (comma)
			*comma = '\0';
		if (count == REPLY_MAX_NODES)
			ok = fail(error, "it names more than 1024 nodes");
		else if (!node_name_ok(name) || !exists(name))
			ok = fail(error, "it names a node that Slurm does not know");
		else
			names[count++] = name;
		name = comma ? comma + 1 : NULL;
	}
	if (!ok)
		return false;
	qsort(names, count, sizeof(names[0]), by_name);
	for (size_t i = 1; i < count; i++)
		if (!strcmp(names[i - 1], names[i]))
			return fail(error, "it names a node twice");
	name = nodes;
	for (size_t i = 1; i < count; i++) {
		name += strlen(name);
		*name = ',';
	}
	reply->node_count = count;
	reply->nodes = nodes;
	return true;
}

static bool check_gpus(struct reply *reply, char *gpus, char error[REPLY_ERROR_MAX])
{
	int last = -1;

	while (gpus) {
		char *comma = strchr(gpus, ',');
		uint64_t position;

		if (comma)
			*comma = '\0';
		if (!parse_number(gpus, GPU_POSITIONS - 1, &position) || (int)position <= last)
			return fail(error,
				    "its GPU positions are not ascending numbers from 0 to 63");
		last = (int)position;
		reply->gpus[reply->gpu_count++] = (uint8_t)position;
		gpus = comma ? comma + 1 : NULL;
	}
	return true;
}

static bool check_berth(struct reply *reply, char *values[KEY_COUNT],
			const struct reply_expected *expected, char error[REPLY_ERROR_MAX])
{
	uint64_t seats;

	if (!expected->node_exists)
		return fail(error,
			    "it places a job, but this slurmctld does not let nodes be checked");
	if (!check_nodes(reply, values[KEY_NODES], expected->node_exists, error) ||
	    !check_gpus(reply, values[KEY_GPUS], error))
		return false;
	if (!parse_number(values[KEY_SEATS], 1, &seats))
		return fail(error, "seats is neither 0 nor 1");
	reply->seats = seats == 1;
	return true;
}

static bool check_shape(struct reply *reply, char *values[KEY_COUNT], char error[REPLY_ERROR_MAX])
{
	uint64_t number;

	if (!parse_number(values[KEY_K], GPU_POSITIONS, &number) || number < 1)
		return fail(error, "k is not a number from 1 to 64");
	reply->gpu_count = (size_t)number;
	if (!parse_number(values[KEY_N], REPLY_MAX_NODES, &number) || number < 1)
		return fail(error, "n is not a number from 1 to 1024");
	reply->node_count = (size_t)number;
	return true;
}

static bool check_cpus(struct reply *reply, char *values[KEY_COUNT],
		       const struct reply_expected *expected, char error[REPLY_ERROR_MAX])
{
	uint64_t number;

	if (values[KEY_MIN_CPUS]) {
		if (!expected->cpus_per_tres)
			return fail(error, "it sets min_cpus for a job without CPUs per GPU");
		if (!parse_number(values[KEY_MIN_CPUS], MIN_CPUS_MAX, &number) || number < 1 ||
		    number < expected->min_cpus)
			return fail(error,
				    "min_cpus is below what the user asked for, or no number");
		reply->min_cpus = (uint32_t)number;
	}
	if (values[KEY_PN_MIN_CPUS]) {
		if (!parse_number(values[KEY_PN_MIN_CPUS], PN_MIN_CPUS_MAX, &number) || number < 1)
			return fail(error, "pn_min_cpus is not a number from 1 to 65533");
		reply->pn_min_cpus = (uint16_t)number;
	}
	return true;
}

static bool check_memory(struct reply *reply, const char *value, char error[REPLY_ERROR_MAX])
{
	uint64_t number;

	if (!value)
		return true;
	if (!parse_number(value, MEM_PER_NODE_MAX, &number) || number < 1)
		return fail(error, "mem_per_node is not a number from 1 to 2^40");
	reply->mem_per_node = number;
	return true;
}

/* The one number that may have a sign. */
static bool check_site_factor(struct reply *reply, const char *value, char error[REPLY_ERROR_MAX])
{
	bool negative = value && *value == '-';
	uint64_t number;

	if (!value)
		return true;
	if (!parse_number(value + negative, SITE_FACTOR_MAX, &number) || (negative && number == 0))
		return fail(error, "site_factor is not a number from -10^9 to 10^9");
	reply->site_factor = negative ? -(int32_t)number : (int32_t)number;
	return true;
}

static bool check_gpus_and_more(struct reply *reply, char *values[KEY_COUNT],
				const struct reply_expected *expected, char error[REPLY_ERROR_MAX])
{
	if (reply->verb == REPLY_PLACE ? !check_berth(reply, values, expected, error)
				       : !check_shape(reply, values, error))
		return false;
	if (expected->gpus ? reply->node_count * reply->gpu_count != expected->gpus
			   : reply->gpu_count != expected->gpus_per_node)
		return fail(error, "it gives another number of GPUs than the job asked for");
	return check_cpus(reply, values, expected, error) &&
	       check_memory(reply, values[KEY_MEM_PER_NODE], error) &&
	       check_site_factor(reply, values[KEY_SITE_FACTOR], error);
}

bool reply_parse(struct reply *reply, size_t len, const struct reply_expected *expected,
		 char error[REPLY_ERROR_MAX])
{
	char *values[KEY_COUNT] = {NULL};

	reply->nodes = reply->segment = reply->message = NULL;
	reply->node_count = reply->gpu_count = 0;
	reply->seats = false;
	reply->min_cpus = 0;
	reply->pn_min_cpus = 0;
	reply->mem_per_node = 0;
	reply->site_factor = 0;
	if (!split_lines(reply, len, values, error))
		return false;
	if (strcmp(values[KEY_NONCE], expected->nonce))
		return fail(error, "its nonce is not that of the request");
	if (values[KEY_SEGMENT] && !printable(values[KEY_SEGMENT], "[]", SEGMENT_BODY_MAX))
		return fail(error, "its segment is too long or has bytes that no segment may have");
	if (values[KEY_MESSAGE] && !printable(values[KEY_MESSAGE], "", MESSAGE_MAX))
		return fail(error, "its message is longer than 512 bytes or not printable");
	if ((FOR_GPUS & (1u << reply->verb)) &&
	    !check_gpus_and_more(reply, values, expected, error))
		return false;
	if (reply->verb == REPLY_REFUSE && !*values[KEY_MESSAGE])
		return fail(error, "it refuses without a reason");
	reply->segment = values[KEY_SEGMENT];
	reply->message = values[KEY_MESSAGE];
	return true;
}
