/* SPDX-License-Identifier: Apache-2.0 */
/* A request of any size becomes one for one task with one GPU, and with its part of a node. */
#include "cli_filter/preflight.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/client_side.h"
#include "common/slurm_api.h"
#include "config/config.h"
#include "text/tres.h"

/* What nodes have; where a request leaves the number of nodes to Slurm. */
#define USUAL_NODE 8

/*
 * Of several nodes, of where they are, and of ends that are the real job's alone. What stays:
 * account, QOS, constraint, dependency, begin, licences, memory by CPU or GPU, the environment.
 */
static const char *const dropped[] = {
    "gpus-per-socket",
    "gpus-per-task",
    "ntasks-per-gpu",
    "ntasks-per-tres",
    "ntasks-per-node",
    "ntasks-per-socket",
    "ntasks-per-core",
    "exclusive",
    "spread-job",
    "use-min-nodes",
    "contiguous",
    "switches",
    "segment",
    "mincpus",
    "nodelist",
    "nodefile",
    "distribution",
    "gpu-bind",
    "tres-bind",
    "core-spec",
    "sockets-per-node",
    "cores-per-socket",
    "extra-node-info",
    "time-min",
    "deadline",
    "signal",
    "mail-type",
    "wait",
    "kill-on-invalid-dep",
    "no-kill",
};

static uint64_t number_of(slurm_opt_t *opt, const char *name)
{
	char *value = slurm_option_isset(opt, name) ? slurm_option_get(opt, name) : NULL;
	uint64_t number = value ? strtoull(value, NULL, 10) : 0;

	slurm_xfree((void **)&value);
	return number;
}

static uint64_t gpus_of(slurm_opt_t *opt, const char *name, const char *as_tres)
{
	struct tres_found found = {0};
	char *value = slurm_option_get(opt, name);
	char *next, *part = value;

	for (; part && *as_tres; part = next) {
		char whole[MODEL_NAME_MAX + 64];

		next = strchr(part, ',');
		if (next)
			*next++ = '\0';
		snprintf(whole, sizeof(whole), "%s%s", as_tres, part);
		tres_scan(whole, &found);
	}
	if (!*as_tres)
		tres_scan(value, &found);
	slurm_xfree((void **)&value);
	return found.gpus;
}

static uint64_t gpus_by_node(slurm_opt_t *opt)
{
	uint64_t gpus = gpus_of(opt, "gres", "");

	return gpus ? gpus : gpus_of(opt, "gpus-per-node", "gres/gpu:");
}

static uint64_t tasks_of(slurm_opt_t *opt)
{
	uint64_t tasks = number_of(opt, "ntasks");

	if (!tasks)
		tasks = number_of(opt, "ntasks-per-node") * number_of(opt, "nodes");
	return tasks ? tasks : 1;
}

uint64_t preflight_gpus(slurm_opt_t *opt)
{
	uint64_t by_node = gpus_by_node(opt);
	uint64_t by_job = gpus_of(opt, "gpus", "gres/gpu:");
	uint64_t by_task = gpus_of(opt, "gpus-per-task", "gres/gpu:");
	uint64_t nodes = number_of(opt, "nodes");
	uint64_t per_gpu = number_of(opt, "ntasks-per-gpu");

	if (!by_task)
		by_task = gpus_of(opt, "tres-per-task", "");
	if (by_job)
		return by_job;
	if (by_node)
		return by_node * (nodes ? nodes : 1);
	if (by_task)
		return by_task * tasks_of(opt);
	return per_gpu ? tasks_of(opt) / per_gpu : gpus_of(opt, "gpus-per-socket", "gres/gpu:");
}

/* How many GPUs of a node the real job has: one of them is the pre-flight's part. */
static uint64_t gpus_on_a_node(slurm_opt_t *opt)
{
	uint64_t by_node = gpus_by_node(opt);
	uint64_t gpus = preflight_gpus(opt);
	uint64_t nodes = number_of(opt, "nodes");

	if (by_node)
		return by_node;
	if (nodes)
		gpus = (gpus + nodes - 1) / nodes;
	else if (gpus > USUAL_NODE)
		gpus = USUAL_NODE;
	return gpus ? gpus : 1;
}

static uint64_t tasks_on_a_node(slurm_opt_t *opt, uint64_t gpus_there)
{
	uint64_t by_node = number_of(opt, "ntasks-per-node");
	uint64_t nodes = number_of(opt, "nodes");
	uint64_t gpus = preflight_gpus(opt);

	if (by_node)
		return by_node;
	if (nodes)
		return (tasks_of(opt) + nodes - 1) / nodes;
	return gpus ? (tasks_of(opt) * gpus_there + gpus - 1) / gpus : 1;
}

static int set_number(slurm_opt_t *opt, const char *name, uint64_t number)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, number);
	return slurm_option_set(opt, name, text, false);
}

static int shrink_cpus(slurm_opt_t *opt, uint64_t gpus_there)
{
	uint64_t cpus = number_of(opt, "cpus-per-task");
	uint64_t part = (cpus * tasks_on_a_node(opt, gpus_there) + gpus_there - 1) / gpus_there;

	if (!cpus || part >= cpus)
		return SLURM_SUCCESS;
	return set_number(opt, "cpus-per-task", part ? part : 1);
}

/* Slurm writes MiB, or with a letter behind. All of a node's memory (0) is nobody's part. */
static int shrink_memory(slurm_opt_t *opt, uint64_t gpus_there)
{
	static const char units[] = "MGTP";
	char *value = slurm_option_isset(opt, "mem") ? slurm_option_get(opt, "mem") : NULL;
	char *end = value;
	uint64_t size = value ? strtoull(value, &end, 10) : 0;
	const char *unit = end && *end ? strchr(units, *end) : NULL;
	bool given = value != NULL;

	for (; unit && unit > units; unit--)
		size *= 1024;
	slurm_xfree((void **)&value);
	if (!given)
		return SLURM_SUCCESS;
	slurm_option_reset(opt, "mem");
	return size ? set_number(opt, "mem", (size + gpus_there - 1) / gpus_there) : SLURM_SUCCESS;
}

static int ask_for_one_gpu(slurm_opt_t *opt, const char *model)
{
	struct text request;
	char *gres, *per_task;
	int rc = SLURM_ERROR;

	per_task = slurm_option_get(opt, "tres-per-task");
	if (per_task && *per_task)
		slurm_option_reset(opt, "tres-per-task");
	slurm_xfree((void **)&per_task);
	gres = slurm_option_get(opt, "gres");
	text_init(&request, FOREIGN_TEXT_MAX);
	text_addf(&request, *model ? "gpu:%s:1" : "gpu:1", model);
	tres_keep_others(gres, &request);
	slurm_xfree((void **)&gres);
	slurm_option_reset(opt, "gpus");
	slurm_option_reset(opt, "gpus-per-node");
	if (!request.failed)
		rc = slurm_option_set(opt, "gres", text_str(&request), false);
	text_free(&request);
	return rc;
}

/* The first index of an array's expression stands for all. */
static int first_task_only(slurm_opt_t *opt)
{
	char *array = slurm_option_isset(opt, "array") ? slurm_option_get(opt, "array") : NULL;
	int rc = SLURM_SUCCESS;

	if (array) {
		array[strspn(array, "0123456789")] = '\0';
		rc = slurm_option_set(opt, "array", array, false);
	}
	slurm_xfree((void **)&array);
	return rc;
}

static int add_to_name(slurm_opt_t *opt, const char *option, const char *without,
		       const char *addition)
{
	char *value = slurm_option_isset(opt, option) ? slurm_option_get(opt, option) : NULL;
	struct text longer;
	int rc = SLURM_ERROR;

	text_init(&longer, FOREIGN_TEXT_MAX);
	text_add(&longer, value && *value ? value : without);
	/* A device takes what both say. */
	if (strncmp(text_str(&longer), "/dev/", strlen("/dev/")))
		text_add(&longer, addition);
	slurm_xfree((void **)&value);
	if (!longer.failed)
		rc = slurm_option_set(opt, option, text_str(&longer), false);
	text_free(&longer);
	return rc;
}

static int name_itself(slurm_opt_t *opt)
{
	bool array = slurm_option_isset(opt, "array");
	int rc =
	    add_to_name(opt, "output", array ? "slurm-%A_%a.out" : "slurm-%j.out", ".preflight");

	if (slurm_option_isset(opt, "error"))
		rc |= add_to_name(opt, "error", "", ".preflight");
	if (slurm_option_isset(opt, "job-name"))
		rc |= add_to_name(opt, "job-name", "", ".preflight");
	else
		rc |= slurm_option_set(opt, "job-name", "preflight", false);
	return rc;
}

static int go_to_the_pool(slurm_opt_t *opt)
{
	struct preflight_config config;

	client_preflight_config(&config);
	if (!config.partition[0])
		return SLURM_SUCCESS;
	slurm_option_reset(opt, "reservation");
	return slurm_option_set(opt, "partition", config.partition, false);
}

int preflight_shrink(slurm_opt_t *opt, uint64_t seconds)
{
	uint64_t gpus_there = gpus_on_a_node(opt);
	struct tres_found found;
	int rc;

	requests_scan(opt, &found);
	rc = shrink_cpus(opt, gpus_there);
	rc |= shrink_memory(opt, gpus_there);
	for (size_t i = 0; i < sizeof(dropped) / sizeof(dropped[0]); i++)
		slurm_option_reset(opt, dropped[i]);
	rc |= ask_for_one_gpu(opt, found.model);
	rc |= set_number(opt, "nodes", 1);
	rc |= set_number(opt, "ntasks", 1);
	/* The runner ends it in time; Slurm counts whole minutes, and is there should it fail. */
	rc |= set_number(opt, "time", (seconds + 59) / 60 + 1);
	rc |= slurm_option_set(opt, "requeue", NULL, false);
	/* What its user's own dependency will never let begin must not lie in the queue. */
	rc |= slurm_option_set(opt, "kill-on-invalid-dep", "yes", false);
	rc |= name_itself(opt);
	rc |= first_task_only(opt);
	rc |= go_to_the_pool(opt);
	return rc == SLURM_SUCCESS ? SLURM_SUCCESS : SLURM_ERROR;
}
