/* SPDX-License-Identifier: Apache-2.0 */
#include "reply/reply_lines.h"

#include <stdio.h>
#include <string.h>

#include "text/text.h"

static const struct {
	const char *name;
	unsigned int allowed;
	unsigned int needed;
} keys[KEY_COUNT] = {
    [KEY_NONCE] = {"nonce", FOR_ALL, FOR_ALL},
    [KEY_NODES] = {"nodes", FOR_PLACE | FOR_PASS, FOR_PLACE},
    [KEY_EXC_NODES] = {"exc_nodes", FOR_PLACE, 0},
    [KEY_GPUS] = {"gpus", FOR_PLACE, FOR_PLACE},
    [KEY_SEATS] = {"seats", FOR_PLACE, FOR_PLACE},
    [KEY_SHARE] = {"share", FOR_GPUS, 0},
    [KEY_GUEST] = {"guest", FOR_GPUS, 0},
    [KEY_BEGIN] = {"begin", FOR_LATER, 0},
    [KEY_MEM] = {"mem", FOR_PLACE, 0},
    [KEY_WAY] = {"way", FOR_PLACE, 0},
    [KEY_K] = {"k", FOR_LATER, FOR_LATER},
    [KEY_N] = {"n", FOR_LATER, FOR_LATER},
    [KEY_MIN_CPUS] = {"min_cpus", FOR_GPUS, 0},
    [KEY_PN_MIN_CPUS] = {"pn_min_cpus", FOR_GPUS, 0},
    [KEY_MEM_PER_NODE] = {"mem_per_node", FOR_GPUS, 0},
    [KEY_LICENSES] = {"licenses", FOR_PLACE | FOR_PASS, 0},
    /* Without it the request as the user wrote it could not be had back. */
    [KEY_SEGMENT] = {"segment", FOR_GPUS | FOR_PASS, FOR_GPUS},
    [KEY_SEGMENT_SIZE] = {"segment_size", FOR_PASS, 0},
    [KEY_MESSAGE] = {"message", FOR_TELLING, FOR_REFUSE},
    [KEY_URGENT] = {"urgent", FOR_PASS, 0},
    [KEY_NODE_GPUS] = {"node_gpus", FOR_PASS, 0},
    [KEY_SECONDS] = {"seconds", FOR_BUSY, FOR_BUSY},
};

bool reply_fail(char error[REPLY_ERROR_MAX], const char *why)
{
	snprintf(error, REPLY_ERROR_MAX, "%s", why);
	return false;
}

static bool parse_verb(const char *line, enum reply_verb *verb)
{
	static const char *const lines[] = {
	    [REPLY_PLACE] = "berth/1 place", [REPLY_LATER] = "berth/1 later",
	    [REPLY_PASS] = "berth/1 pass",   [REPLY_REFUSE] = "berth/1 refuse",
	    [REPLY_BUSY] = "berth/1 busy",
	};

	for (int i = REPLY_PLACE; i <= REPLY_BUSY; i++) {
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
		return reply_fail(error, "a line is not key=value");
	*equals = '\0';
	for (int i = 0; i < KEY_COUNT; i++) {
		if (strcmp(line, keys[i].name))
			continue;
		if (values[i])
			return reply_fail(error, "a key stands twice");
		if (!(keys[i].allowed & (1u << verb)))
			return reply_fail(error, "a key does not belong to this verb");
		if (!unescape(equals + 1))
			return reply_fail(error, "a value is not escaped as it must be");
		values[i] = equals + 1;
		return true;
	}
	return reply_fail(error, "it has an unknown key");
}

bool reply_split(struct reply *reply, size_t len, char *values[KEY_COUNT],
		 char error[REPLY_ERROR_MAX])
{
	char *line = reply->text;
	unsigned int lines = 0;

	if (len == 0 || len > REPLY_MAX_BYTES)
		return reply_fail(error, "it is empty or longer than 16384 bytes");
	reply->text[len] = '\0';
	if (strlen(reply->text) != len || reply->text[len - 1] != '\n')
		return reply_fail(error, "it has a NUL byte or no newline at its end");
	while (*line) {
		char *end = strchr(line, '\n');

		*end = '\0';
		if (++lines > REPLY_MAX_LINES)
			return reply_fail(error, "it has more than 64 lines");
		if (lines == 1) {
			if (!parse_verb(line, &reply->verb))
				return reply_fail(
				    error, "it does not begin with berth/1 and a known verb");
		} else if (!store_line(line, reply->verb, values, error)) {
			return false;
		}
		line = end + 1;
	}
	for (int i = 0; i < KEY_COUNT; i++)
		if ((keys[i].needed & (1u << reply->verb)) && !values[i])
			return reply_fail(error, "a needed key is missing");
	return true;
}
