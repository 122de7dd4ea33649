/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_filter/preflight_shrink.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/slurm_api.h"
#include "text/tres.h"

/* What nodes have; for a request that leaves the number of nodes to Slurm. */
#define USUAL_NODE 8

/*
 * Of several tasks, GPUs and nodes, of where they are, and of ends that are the real job's alone.
 * What stays: account, QOS, constraint, dependency, begin, licences, memory by CPU or GPU, the
 * environment. An option that does not fit one task and is not named here costs the pre-flight.
 */
static const char *const of_many[] = {"gpus",
				      "gpus-per-node",
				      "gpus-per-socket",
				      "gpus-per-task",
				      "ntasks-per-gpu",
				      "ntasks-per-node",
				      "exclusive",
				      "segment",
				      "mincpus",
				      "nodelist",
				      "time-min",
				      "signal",
				      NULL};

/* A step has all of its job. */
static const char *const of_steps[] = {"gpu-bind",     "tres-bind", "exclude",	   "relative",
				       "exact",	       "mem",	    "mem-per-cpu", "mem-per-gpu",
				       "cpus-per-gpu", NULL};

static void reset(slurm_opt_t *opt, const char *const *names)
{
	for (; *names; names++)
		slurm_option_reset(opt, *names);
}

static uint64_t number_of(slurm_opt_t *opt, const char *name)
{
	char *value = slurm_option_isset(opt, name) ? slurm_option_get(opt, name) : NULL;
	uint64_t number = value ? strtoull(value, NULL, 10) : 0;

	slurm_xfree((void **)&value);
	return number;
}

static uint64_t at_least_1(uint64_t number)
{
	return number ? number : 1;
}

static uint64_t tasks_of(slurm_opt_t *opt)
{
	uint64_t tasks = number_of(opt, "ntasks");

	return at_least_1(tasks ? tasks
				: number_of(opt, "ntasks-per-node") * number_of(opt, "nodes"));
}

uint64_t preflight_gpus(slurm_opt_t *opt)
{
	uint64_t by_job = requests_gpus(opt, "gpus");
	uint64_t by_node = requests_gpus(opt, "gres");
	uint64_t by_task = requests_gpus(opt, "tres-per-task");
	uint64_t per_gpu = number_of(opt, "ntasks-per-gpu");

	/* Slurm may keep one request in two forms. */
	if (!by_node)
		by_node = requests_gpus(opt, "gpus-per-node");
	if (!by_task)
		by_task = requests_gpus(opt, "gpus-per-task");
	if (by_job)
		return by_job;
	if (by_node)
		return by_node * at_least_1(number_of(opt, "nodes"));
	if (by_task)
		return by_task * tasks_of(opt);
	return per_gpu ? tasks_of(opt) / per_gpu : requests_gpus(opt, "gpus-per-socket");
}

static int set_number(slurm_opt_t *opt, const char *name, uint64_t number)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, number);
	return slurm_option_set(opt, name, text, false);
}

/* One GPU's part of all CPUs that the tasks ask for. */
static int shrink_cpus(slurm_opt_t *opt, uint64_t gpus)
{
	uint64_t cpus = number_of(opt, "cpus-per-task");
	uint64_t part = (cpus * tasks_of(opt) + gpus - 1) / gpus;

	return part < cpus ? set_number(opt, "cpus-per-task", part) : SLURM_SUCCESS;
}

/* Slurm writes MiB, or with a letter behind. All of a node's memory (0) is no part. */
static int shrink_memory(slurm_opt_t *opt, uint64_t nodes, uint64_t gpus)
{
	static const char units[] = "MGTP";
	char *value = slurm_option_isset(opt, "mem") ? slurm_option_get(opt, "mem") : NULL;
	char *end = value;
	uint64_t size = value ? strtoull(value, &end, 10) : 0;
	const char *unit = end && *end ? strchr(units, *end) : NULL;

	for (; unit && unit > units; unit--)
		size *= 1024;
	if (value)
		slurm_option_reset(opt, "mem");
	slurm_xfree((void **)&value);
	return size ? set_number(opt, "mem", (size * nodes + gpus - 1) / gpus) : SLURM_SUCCESS;
}

static int ask_for_one_gpu(slurm_opt_t *opt)
{
	char *gres = slurm_option_get(opt, "gres");
	struct tres_found found;
	struct text request;
	int rc = SLURM_ERROR;

	requests_scan(opt, &found);
	if (requests_gpus(opt, "tres-per-task"))
		slurm_option_reset(opt, "tres-per-task");
	text_init(&request, FOREIGN_TEXT_MAX);
	text_addf(&request, found.model[0] ? "gpu:%s:1" : "gpu:1", found.model);
	tres_keep_others(gres, &request);
	slurm_xfree((void **)&gres);
	if (!request.failed)
		rc = slurm_option_set(opt, "gres", text_str(&request), false);
	text_free(&request);
	return rc;
}

/* Both outputs go to one file beside the job's own. A device takes what both jobs say. */
static int write_elsewhere(slurm_opt_t *opt)
{
	char *value = slurm_option_isset(opt, "output") ? slurm_option_get(opt, "output") : NULL;
	struct text longer;
	int rc = SLURM_ERROR;

	slurm_option_reset(opt, "error");
	text_init(&longer, FOREIGN_TEXT_MAX);
	text_add(&longer, value && *value ? value : "slurm-%j.out");
	if (strncmp(text_str(&longer), "/dev/", strlen("/dev/")))
		text_add(&longer, ".preflight");
	slurm_xfree((void **)&value);
	if (!longer.failed)
		rc = slurm_option_set(opt, "output", text_str(&longer), false);
	text_free(&longer);
	return rc;
}

static int one_task(slurm_opt_t *opt)
{
	reset(opt, of_many);
	return set_number(opt, "nodes", 1) | set_number(opt, "ntasks", 1);
}

int preflight_shrink(slurm_opt_t *opt, const char *partition, uint64_t seconds)
{
	uint64_t gpus = at_least_1(preflight_gpus(opt));
	uint64_t nodes = number_of(opt, "nodes");
	int rc = shrink_cpus(opt, gpus);

	if (!nodes)
		nodes = (gpus + USUAL_NODE - 1) / USUAL_NODE;
	rc |= shrink_memory(opt, nodes, gpus < nodes ? nodes : gpus);
	rc |= ask_for_one_gpu(opt);
	rc |= one_task(opt);
	/* The runner ends it in time; Slurm counts whole minutes, and is there should it fail. */
	rc |= set_number(opt, "time", (seconds + 59) / 60 + 1);
	/* What its user's own dependency will never let begin must not lie in the queue. */
	rc |= slurm_option_set(opt, "kill-on-invalid-dep", "yes", false);
	rc |= write_elsewhere(opt);
	if (*partition) {
		slurm_option_reset(opt, "reservation");
		rc |= slurm_option_set(opt, "partition", partition, false);
	}
	return rc == SLURM_SUCCESS ? SLURM_SUCCESS : SLURM_ERROR;
}

int preflight_step(slurm_opt_t *opt)
{
	const char *cpus = getenv("SLURM_CPUS_ON_NODE");
	int rc = requests_drop_gpus(opt) | one_task(opt);

	reset(opt, of_steps);
	if (cpus && number_of(opt, "cpus-per-task") > strtoull(cpus, NULL, 10))
		rc |= slurm_option_set(opt, "cpus-per-task", cpus, false);
	/* Several at the same time are several parts of one program: none may wait for another. */
	rc |= slurm_option_set(opt, "overlap", NULL, false);
	return rc == SLURM_SUCCESS ? SLURM_SUCCESS : SLURM_ERROR;
}
