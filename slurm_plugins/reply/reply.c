/* SPDX-License-Identifier: Apache-2.0 */
#include "reply/reply.h"

#include <stdlib.h>
#include <string.h>

#include "reply/reply_lines.h"
#include "config/counted.h"
#include "text/hostlist.h"
#include "text/text.h"

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

struct place {
	char *names[REPLY_MAX_NODES]; /* sorted */
	size_t count;
	bool (*exists)(const char *name);
};

static bool may_be_excluded(const char *name, const void *context)
{
	const struct place *place = context;

	return place->exists(name) &&
	       !bsearch(&name, place->names, place->count, sizeof(name), by_name);
}

/*
 * Slurm refuses a whole submission that excludes a node it does not know, or one that it requires.
 */
static bool check_others(struct reply *reply, const struct place *place, const char *others,
			 const struct reply_expected *expected, char error[REPLY_ERROR_MAX])
{
	if (!others)
		return true;
	if (expected->exc_nodes)
		return reply_fail(error, "it excludes nodes where the user does so");
	if (!hostlist_all(others, OTHERS_MAX, may_be_excluded, place))
		return reply_fail(error,
				  "what it excludes is no list of nodes that Slurm knows, or "
				  "it excludes a node that it places the job on");
	reply->exc_nodes = others;
	return true;
}

/* Each name is cut out for a moment only; the list keeps its commas. */
static bool check_nodes(struct reply *reply, char *nodes, const char *others,
			const struct reply_expected *expected, char error[REPLY_ERROR_MAX])
{
	struct place place = {.exists = expected->node_exists};
	char *name = nodes;

	if (!expected->node_exists)
		return reply_fail(
		    error, "it places a job, but this slurmctld does not let nodes be checked");
	while (name) {
		char *comma = strchr(name, ',');

		if (comma)
			*comma = '\0';
		if (place.count == REPLY_MAX_NODES)
			return reply_fail(error, "it names more than 1024 nodes");
		if (!node_name_ok(name) || !place.exists(name))
			return reply_fail(error, "it names a node that Slurm does not know");
		place.names[place.count++] = name;
		name = comma ? comma + 1 : NULL;
	}
	qsort(place.names, place.count, sizeof(place.names[0]), by_name);
	for (size_t i = 1; i < place.count; i++)
		if (!strcmp(place.names[i - 1], place.names[i]))
			return reply_fail(error, "it names a node twice");
	if (!check_others(reply, &place, others, expected, error))
		return false;
	name = nodes;
	for (size_t i = 1; i < place.count; i++) {
		name += strlen(name);
		*name = ',';
	}
	reply->node_count = place.count;
	reply->nodes = nodes;
	return true;
}

/* Of a job whose GPUs Slurm chooses: on the plain layout. */
static bool check_nodes_alone(struct reply *reply, char *nodes,
			      const struct reply_expected *expected, char error[REPLY_ERROR_MAX])
{
	if (!expected->nodes)
		return reply_fail(error, "it gives nodes to a job whose nodes Slurm chooses");
	if (!check_nodes(reply, nodes, NULL, expected, error))
		return false;
	return reply->node_count == expected->nodes ||
	       reply_fail(error, "it gives another number of nodes than the job asked for");
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
			return reply_fail(
			    error, "its GPU positions are not ascending numbers from 0 to 63");
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

	if (!check_nodes(reply, values[KEY_NODES], values[KEY_EXC_NODES], expected, error) ||
	    !check_gpus(reply, values[KEY_GPUS], error))
		return false;
	if (!parse_number(values[KEY_SEATS], 1, &seats))
		return reply_fail(error, "seats is neither 0 nor 1");
	reply->seats = seats == 1;
	return true;
}

static bool check_shape(struct reply *reply, char *values[KEY_COUNT], char error[REPLY_ERROR_MAX])
{
	uint64_t number;

	if (!parse_number(values[KEY_K], GPU_POSITIONS, &number) || number < 1)
		return reply_fail(error, "k is not a number from 1 to 64");
	reply->gpu_count = (size_t)number;
	if (!parse_number(values[KEY_N], REPLY_MAX_NODES, &number) || number < 1)
		return reply_fail(error, "n is not a number from 1 to 1024");
	reply->node_count = (size_t)number;
	return true;
}

/* A share is never less than what was asked for, and the owner of a seat owns the whole GPU. */
static bool check_share(struct reply *reply, const char *value,
			const struct reply_expected *expected, char error[REPLY_ERROR_MAX])
{
	uint64_t number;

	if (!value)
		return true;
	if (!expected->share)
		return reply_fail(error, "it gives a share to a job that wants whole GPUs");
	if (!parse_number(value, 100, &number) || number < expected->share)
		return reply_fail(error, "share is below what the user asked for, or above 100");
	if (reply->seats)
		return reply_fail(error, "it gives a share and seats together");
	reply->share = (uint32_t)number;
	reply->asked_share = expected->share;
	return true;
}

/* A guest is a batch job, which can be put back into the queue, and has one seat. */
static bool check_guest(struct reply *reply, char *values[KEY_COUNT],
			const struct reply_expected *expected, char error[REPLY_ERROR_MAX])
{
	uint64_t begin;

	if (values[KEY_BEGIN] && !values[KEY_GUEST])
		return reply_fail(error, "begin stands without guest");
	if (!values[KEY_GUEST])
		return true;
	if (strcmp(values[KEY_GUEST], "1") != 0)
		return reply_fail(error, "guest is not 1");
	if (!expected->batch)
		return reply_fail(error, "it makes a guest of a job that has no script");
	if (reply->seats || reply->share || reply->node_count * reply->gpu_count != 1)
		return reply_fail(error, "a guest has one seat, and neither a share nor a GPU");
	reply->guest = true;
	if (reply->verb == REPLY_LATER &&
	    (!values[KEY_BEGIN] || !parse_number(values[KEY_BEGIN], UINT32_MAX, &begin)))
		return reply_fail(error, "begin is no time, or a guest without a seat has none");
	reply->begin = reply->verb == REPLY_LATER ? begin : 0;
	return true;
}

static bool check_sharing(struct reply *reply, char *values[KEY_COUNT],
			  const struct reply_expected *expected, char error[REPLY_ERROR_MAX])
{
	const char *way = values[KEY_WAY];
	uint64_t number;

	if (!check_share(reply, values[KEY_SHARE], expected, error) ||
	    !check_guest(reply, values, expected, error))
		return false;
	if (reply->verb != REPLY_PLACE)
		return true;
	if (!way && (reply->share || reply->guest))
		return reply_fail(error, "a share or a guest has no way");
	if (way && expected->share && !reply->share)
		return reply_fail(error, "share and way do not stand together");
	if (way && reply->seats)
		return reply_fail(error, "way and seats stand together");
	if (way && strcmp(way, "mps") != 0 && strcmp(way, "time") != 0)
		return reply_fail(error, "way is neither mps nor time");
	reply->way = way;
	if (!values[KEY_MEM])
		return true;
	if (!way || !parse_number(values[KEY_MEM], GPU_MEM_MAX, &number) || number < 1)
		return reply_fail(error,
				  "mem stands without a share, or is not a number from 1 to 2^24");
	reply->gpu_mem = number;
	return true;
}

static bool check_cpus(struct reply *reply, char *values[KEY_COUNT],
		       const struct reply_expected *expected, char error[REPLY_ERROR_MAX])
{
	uint64_t number;

	if (values[KEY_MIN_CPUS]) {
		if (!expected->cpus_per_tres)
			return reply_fail(error, "it sets min_cpus for a job without CPUs per GPU");
		if (!parse_number(values[KEY_MIN_CPUS], MIN_CPUS_MAX, &number) || number < 1 ||
		    number < expected->min_cpus)
			return reply_fail(
			    error, "min_cpus is below what the user asked for, or no number");
		reply->min_cpus = (uint32_t)number;
	}
	if (values[KEY_PN_MIN_CPUS]) {
		if (!parse_number(values[KEY_PN_MIN_CPUS], PN_MIN_CPUS_MAX, &number) || number < 1)
			return reply_fail(error, "pn_min_cpus is not a number from 1 to 65533");
		reply->pn_min_cpus = (uint16_t)number;
	}
	return true;
}

/* A number that may be left out, from 1 on. */
static bool take_number(const char *value, uint64_t most, uint64_t *number, const char *complaint,
			char error[REPLY_ERROR_MAX])
{
	uint64_t found;

	if (!value)
		return true;
	if (!parse_number(value, most, &found) || found < 1)
		return reply_fail(error, complaint);
	*number = found;
	return true;
}

/* Slurm never starts a job whose nodes are no whole number of segments. */
static bool check_segment_size(struct reply *reply, const char *value,
			       const struct reply_expected *expected, char error[REPLY_ERROR_MAX])
{
	if (value && !expected->segmented)
		return reply_fail(error, "it gives segments to a job that may have none");
	if (!take_number(value, expected->segmented, &reply->segment_size,
			 "segment_size is not a number from 1 to the nodes of the job", error))
		return false;
	return !reply->segment_size || expected->segmented % reply->segment_size == 0 ||
	       reply_fail(error, "the nodes of the job are no whole number of its segments");
}

/* Slurm refuses a whole submission that names a licence it does not know. */
static bool check_licenses(struct reply *reply, const char *value,
			   const struct reply_expected *expected, char error[REPLY_ERROR_MAX])
{
	if (value && (strlen(value) > SLURM_TEXT_MAX || !counted_valid(value, expected->licenses)))
		return reply_fail(error, "its licenses are none of those that count GPUs here");
	reply->licenses = value;
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
		return reply_fail(error, "it gives another number of GPUs than the job asked for");
	return check_sharing(reply, values, expected, error) &&
	       check_cpus(reply, values, expected, error) &&
	       take_number(values[KEY_MEM_PER_NODE], MEM_PER_NODE_MAX, &reply->mem_per_node,
			   "mem_per_node is not a number from 1 to 2^40", error) &&
	       check_licenses(reply, values[KEY_LICENSES], expected, error);
}

static bool has_nonce(char *values[KEY_COUNT], const struct reply_expected *expected)
{
	return values[KEY_NONCE] && !strcmp(values[KEY_NONCE], expected->nonce);
}

bool reply_parse(struct reply *reply, size_t len, const struct reply_expected *expected,
		 char error[REPLY_ERROR_MAX])
{
	char *values[KEY_COUNT] = {NULL};
	bool well_formed;

	reply->nodes = reply->segment = reply->message = reply->way = reply->exc_nodes = NULL;
	reply->licenses = NULL;
	reply->node_count = reply->gpu_count = 0;
	reply->seats = false;
	reply->urgent = false;
	reply->guest = false;
	reply->begin = 0;
	reply->share = reply->asked_share = 0;
	reply->gpu_mem = 0;
	reply->min_cpus = 0;
	reply->pn_min_cpus = 0;
	reply->mem_per_node = 0;
	reply->node_gpus = 0;
	reply->segment_size = 0;
	reply->seconds = 0;
	well_formed = reply_split(reply, len, values, error);
	reply->ours = has_nonce(values, expected);
	if (!well_formed)
		return false;
	if (!reply->ours)
		return reply_fail(error, "its nonce is not that of the request");
	if (values[KEY_SEGMENT] && !printable(values[KEY_SEGMENT], "[]", SEGMENT_BODY_MAX))
		return reply_fail(error,
				  "its segment is too long or has bytes that no segment may have");
	if (values[KEY_MESSAGE] && !printable(values[KEY_MESSAGE], "", MESSAGE_MAX))
		return reply_fail(error, "its message is longer than 512 bytes or not printable");
	if (reply_is(reply, FOR_GPUS) && !check_gpus_and_more(reply, values, expected, error))
		return false;
	if (reply->verb == REPLY_PASS && values[KEY_NODES] &&
	    !check_nodes_alone(reply, values[KEY_NODES], expected, error))
		return false;
	if (reply->verb == REPLY_PASS &&
	    !check_licenses(reply, values[KEY_LICENSES], expected, error))
		return false;
	if (!check_segment_size(reply, values[KEY_SEGMENT_SIZE], expected, error))
		return false;
	if (reply->verb == REPLY_REFUSE && !*values[KEY_MESSAGE])
		return reply_fail(error, "it refuses without a reason");
	if (!take_number(values[KEY_SECONDS], BUSY_SECONDS_MAX, &reply->seconds,
			 "seconds is not a number from 1 to 60", error))
		return false;
	if (!take_number(values[KEY_NODE_GPUS], GPUS_MAX, &reply->node_gpus,
			 "node_gpus is not a number from 1 to 1000000", error))
		return false;
	if (values[KEY_URGENT] && strcmp(values[KEY_URGENT], "1") != 0)
		return reply_fail(error, "urgent is not 1");
	reply->urgent = values[KEY_URGENT] != NULL;
	reply->segment = values[KEY_SEGMENT];
	reply->message = values[KEY_MESSAGE];
	return true;
}
