/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each GPU has its own GRES type here, so Slurm alone would refuse "gpu:a100:2". The plugin turns
 * it into two GPUs of a node with the feature a100, whether berthd answers or not.
 */
#include "job_submit/job_submit.h"

#include <inttypes.h>
#include <stdio.h>

#include "config/counted.h"

static void strip(char *tres)
{
	if (tres)
		tres_strip_models(tres);
}

void models_strip(job_desc_msg_t *job)
{
	strip(job->tres_per_job);
	strip(job->tres_per_node);
	strip(job->tres_per_socket);
	strip(job->tres_per_task);
	strip(job->cpus_per_tres);
	strip(job->mem_per_tres);
	/* sbatch exports the request into the job, where each srun reads it for its step. */
	for (uint32_t i = 0; job->environment && i < job->env_size; i++)
		if (job->environment[i])
			env_strip_models(job->environment[i]);
}

enum feature_join models_require(job_desc_msg_t *job, const char *model)
{
	enum feature_join result;
	struct text features;

	text_init(&features, SLURM_TEXT_MAX);
	result = features_join(job->features, model, &features);
	if (features.failed)
		result = JOIN_UNCLEAR;
	if (result == JOIN_OK)
		set_string(&job->features, text_str(&features));
	text_free(&features);
	return result;
}

void models_count(job_desc_msg_t *job, const char *model)
{
	struct reply_expected asked = {0};
	char ours[MODEL_NAME_MAX + 32];

	if (!counted_model(slurm_conf.licenses, model))
		return;
	request_count_gpus(job, &asked);
	if (!asked.gpus)
		asked.gpus = asked.gpus_per_node *
			     (job->min_nodes && job->min_nodes != NO_VAL ? job->min_nodes : 1);
	if (!asked.gpus || asked.gpus > GPUS_MAX)
		return;
	snprintf(ours, sizeof(ours), "berth_%s:%" PRIu64, model, asked.gpus);
	apply_licenses(job, ours);
}
