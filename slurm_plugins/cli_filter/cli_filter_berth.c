/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli_filter/berth: takes GPU model names out of what srun asks for its step. A step never reaches
 * job_submit, and with one GRES type for each GPU Slurm would refuse "srun --gres=gpu:a100:1".
 *
 * An srun that also makes the allocation asks twice with the same words, for the job and for its
 * step: there the model becomes the node feature here, as job_submit would do it for the job alone.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_filter/cli_options.h"
#include "cli_filter/preflight.h"
#include "cli_filter/preflight_shrink.h"
#include "common/client_side.h"
#include "common/messages.h"
#include "common/needed.h"
#include "common/one_job.h"
#include "common/slurm_api.h"
#include "config/options.h"
#include "text/tres.h"

const char plugin_name[] = "Berth cli_filter plugin";
const char plugin_type[] = "cli_filter/berth";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;

int init(void);
int fini(void);
int cli_filter_p_setup_defaults(slurm_opt_t *opt, bool early);
int cli_filter_p_pre_submit(slurm_opt_t *opt, int offset);
void cli_filter_p_post_submit(int offset, uint32_t job_id, uint32_t step_id);

static const struct {
	const char *name;
	bool (*strip)(char *value);
	const char *as_tres; /* what makes the value a whole TRES */
} requests[] = {
    {"gres", gres_strip_models, ""},
    {"gpus", gpus_strip_models, "gres/gpu:"},
    {"gpus-per-node", gpus_strip_models, "gres/gpu:"},
    {"gpus-per-socket", gpus_strip_models, "gres/gpu:"},
    {"gpus-per-task", gpus_strip_models, "gres/gpu:"},
    {"tres-per-task", tres_strip_models, ""},
};

#define REQUEST_COUNT (sizeof(requests) / sizeof(requests[0]))

static const struct needed needed[] = {
    NEEDED(slurm_error),	NEEDED(slurm_free_job_info_msg), NEEDED(slurm_info),
    NEEDED(slurm_kill_job2),	NEEDED(slurm_load_job),		 NEEDED(slurm_option_get),
    NEEDED(slurm_option_isset), NEEDED(slurm_option_reset),	 NEEDED(slurm_option_set),
    NEEDED(slurm_xfree),
};
/* Does this Slurm lack one? Then each request stays as it is. */
static bool idle;

int init(void)
{
	idle = !slurm_has(needed, sizeof(needed) / sizeof(*needed));
	return SLURM_SUCCESS;
}

int fini(void)
{
	return SLURM_SUCCESS;
}

int cli_filter_p_setup_defaults(slurm_opt_t *opt, bool early)
{
	(void)opt;
	(void)early;
	return SLURM_SUCCESS;
}

bool option_is_ours(slurm_opt_t *opt, const char *name)
{
	char *value = slurm_option_get(opt, name);
	bool ours = value && strcmp(value, "invalid-context");

	slurm_xfree((void **)&value);
	return ours;
}

static bool left_as_it_is(slurm_opt_t *opt)
{
	char *partition = slurm_option_get(opt, "partition");
	bool left = client_leaves_requests(partition);

	slurm_xfree((void **)&partition);
	return left;
}

static void scan(slurm_opt_t *opt, size_t i, struct tres_found *found)
{
	char *value = slurm_option_get(opt, requests[i].name);
	char *next, *part = value;

	for (; part && *requests[i].as_tres; part = next) {
		char whole[MODEL_NAME_MAX + 64];

		next = strchr(part, ',');
		if (next)
			*next++ = '\0';
		snprintf(whole, sizeof(whole), "%s%s", requests[i].as_tres, part);
		tres_scan(whole, found);
	}
	if (!*requests[i].as_tres)
		tres_scan(value, found);
	slurm_xfree((void **)&value);
}

void requests_scan(slurm_opt_t *opt, struct tres_found *found)
{
	*found = (struct tres_found){0};
	for (size_t i = 0; i < REQUEST_COUNT; i++)
		scan(opt, i, found);
}

uint64_t requests_gpus(slurm_opt_t *opt, const char *name)
{
	struct tres_found found = {0};

	for (size_t i = 0; i < REQUEST_COUNT; i++)
		if (!strcmp(requests[i].name, name))
			scan(opt, i, &found);
	return found.gpus;
}

static int strip_requests(slurm_opt_t *opt)
{
	int rc = SLURM_SUCCESS;

	for (size_t i = 0; i < REQUEST_COUNT; i++) {
		char *value = slurm_option_get(opt, requests[i].name);

		if (value && requests[i].strip(value) &&
		    slurm_option_set(opt, requests[i].name, value, false) != SLURM_SUCCESS) {
			slurm_error(
			    "berth: cannot take the GPU model out of --%s; leave it out" BERTH_ID(
				847),
			    requests[i].name);
			rc = SLURM_ERROR;
		}
		slurm_xfree((void **)&value);
	}
	return rc;
}

/* A step inherits the constraint, and its nodes have the feature: the job got them by it. */
static int require_model(slurm_opt_t *opt, const char *model)
{
	char *constraint = slurm_option_get(opt, "constraint");
	int rc = SLURM_ERROR;
	struct text joined;

	text_init(&joined, FOREIGN_TEXT_MAX);
	if (features_join(constraint, model, &joined) != JOIN_OK || joined.failed)
		slurm_error(
		    "berth: the GPU model cannot be added to this --constraint; ask for the "
		    "GPUs without their model and put the model into the constraint" BERTH_ID(810));
	else
		rc = slurm_option_set(opt, "constraint", text_str(&joined), false);
	text_free(&joined);
	slurm_xfree((void **)&constraint);
	return rc;
}

/*
 * GPUs of each node that a job's place has for steps without a request of their own; 0: it has no
 * place. SLURM_GPUS_ON_NODE would have all GPUs of a node that is the job's alone.
 */
static uint64_t pinned_gpus(uint32_t id, uint64_t otherwise)
{
	job_info_msg_t *jobs = NULL;
	struct tres_found place = {0};

	if (load_job(id, &jobs, SHOW_ALL) != SLURM_SUCCESS || !jobs)
		return otherwise;
	for (uint32_t i = 0; i < jobs->record_count; i++)
		if (JOB_ID(&jobs->job_array[i]) == id)
			tres_scan(jobs->job_array[i].tres_per_node, &place);
	slurm_free_job_info_msg(jobs);
	return place.position_type ? place.gpus : 0;
}

/*
 * A step without a GPU request takes the job's, which is one GRES type for each GPU when pinned;
 * from 26.05 on Slurm binds within each type, so that --gpu-bind=single:1 would bind nothing. Asked
 * without types, as many GPUs as the job has on each node, it binds as the user means it.
 */
static void ask_untyped_for_binding(slurm_opt_t *opt)
{
	const char *on_node = getenv("SLURM_GPUS_ON_NODE");
	const char *job = getenv("SLURM_JOB_ID");
	const char *step = getenv("SLURM_STEP_ID");
	char request[64];
	uint64_t count, id, within;

	if (!on_node || !parse_number(on_node, 4096, &count) || count < 1)
		return;
	if (!slurm_option_isset(opt, "gpu-bind") && !slurm_option_isset(opt, "tres-bind"))
		return;
	/* Inside a step they are the step's own GPUs. */
	if (job && parse_number(job, NO_VAL - 1, &id) &&
	    !(step && parse_number(step, SLURM_MAX_NORMAL_STEP_ID - 1, &within)))
		count = pinned_gpus((uint32_t)id, count);
	if (!count)
		return;
	snprintf(request, sizeof(request), "gres/gpu:%" PRIu64, count);
	slurm_option_set(opt, "gres", request, false);
}

int requests_drop_gpus(slurm_opt_t *opt)
{
	int rc = SLURM_SUCCESS;

	for (size_t i = 0; i < REQUEST_COUNT; i++) {
		char *value = slurm_option_get(opt, requests[i].name);
		struct text others;

		text_init(&others, FOREIGN_TEXT_MAX);
		if (!*requests[i].as_tres)
			tres_keep_others(value, &others);
		if (others.failed)
			rc = SLURM_ERROR;
		else if (value && !others.len)
			slurm_option_reset(opt, requests[i].name);
		else if (value && strcmp(value, text_str(&others)) != 0)
			rc = slurm_option_set(opt, requests[i].name, text_str(&others), false);
		text_free(&others);
		slurm_xfree((void **)&value);
	}
	return rc;
}

/*
 * A job with a share has no GPU in Slurm's books: a step gets what the job has by asking for none,
 * and would be refused if it asked. So neither may srun ask, whose step repeats its words, nor
 * salloc, whose shell hands them to each srun. job_submit takes --gpu-share alone for one GPU.
 */
static int ask_for_share(slurm_opt_t *opt, const struct tres_found *found)
{
	/* Two models in one job are refused by job_submit, in its own words. */
	if (left_as_it_is(opt) || found->several_models || found->bad_model)
		return SLURM_SUCCESS;
	if (found->gpus > 1) {
		slurm_error("--" OPTION_SHARE " of several GPUs works in sbatch only; use sbatch, "
			    "or ask for one GPU" BERTH_ID(848));
		return SLURM_ERROR;
	}
	if (found->model[0] && require_model(opt, found->model) != SLURM_SUCCESS)
		return SLURM_ERROR;
	return requests_drop_gpus(opt);
}

/* true, once, where the user of this very command gave --gpu-share. */
static bool share_asked(void)
{
	bool asked = getenv(SHARE_ASKED) != NULL;

	unsetenv(SHARE_ASKED);
	return asked;
}

int cli_filter_p_pre_submit(slurm_opt_t *opt, int offset)
{
	struct tres_found found;
	bool share = share_asked();
	bool srun, step;

	if (idle)
		return SLURM_SUCCESS;
	srun = option_is_ours(opt, "exact");
	step = srun && inside_allocation();
	if (option_is_ours(opt, "ignore-pbs"))
		return preflight_sbatch(opt, offset);
	if (step && getenv(PREFLIGHT_HERE))
		return preflight_step(opt);
	/* What a step asked for does not matter, but what the job has. */
	if (step)
		share = getenv(SHARDS_HERE) || getenv(GUEST_HERE);
	if (!srun && !(share && option_is_ours(opt, "bell")))
		return SLURM_SUCCESS;
	requests_scan(opt, &found);
	if (client_leaves_requests(""))
		return SLURM_SUCCESS;
	if (share && found.gpu)
		return step ? requests_drop_gpus(opt) : ask_for_share(opt, &found);
	if (!srun)
		return SLURM_SUCCESS;
	/* --gres=none is a request too. */
	if (step && !found.gpu && !slurm_option_isset(opt, "gres"))
		ask_untyped_for_binding(opt);
	if (!found.model[0] || left_as_it_is(opt))
		return SLURM_SUCCESS;
	if (inside_allocation() || slurm_option_isset(opt, "jobid"))
		return strip_requests(opt);
	/* Two models in one job are refused by job_submit, in its own words. */
	if (found.several_models || found.bad_model)
		return SLURM_SUCCESS;
	if (require_model(opt, found.model) != SLURM_SUCCESS)
		return SLURM_ERROR;
	return strip_requests(opt);
}

void cli_filter_p_post_submit(int offset, uint32_t job_id, uint32_t step_id)
{
	(void)offset;
	if (step_id == NO_VAL && !idle)
		preflight_submitted(job_id);
}
