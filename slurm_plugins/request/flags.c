/* SPDX-License-Identifier: Apache-2.0 */
/* The flags of ours in a request. */
#include "request/request.h"

#include <stdlib.h>
#include <string.h>

#include "config/options.h"

static int flag_from_env(char **env, uint32_t size, const char *prefix, struct flag_values *flags)
{
	for (uint32_t i = 0; env && i < size; i++) {
		const struct berth_option *option;
		const char *value;
		char **slot;

		option = env[i] ? option_in_env(env[i], prefix, &value) : NULL;
		if (!option)
			continue;
		slot = &flags->value[option - berth_options];
		if (!option_value_ok(option, value))
			return (int)(option - berth_options);
		free(*slot);
		*slot = strdup(value);
		if (!*slot)
			return -1;
		flags->any = true;
	}
	return (int)berth_option_count;
}

bool flags_read(const job_desc_msg_t *job, struct flag_values *flags, int *wrong)
{
	*flags = (struct flag_values){0};
	/* sbatch, srun and salloc fill spank_job_env; a REST client can only set the environment.
	 */
	*wrong = flag_from_env(job->spank_job_env, job->spank_job_env_size, "", flags);
	if (*wrong == (int)berth_option_count && !flags->any)
		*wrong = flag_from_env(job->environment, job->env_size, "", flags);
	if (*wrong == (int)berth_option_count && !flags->any)
		*wrong = flag_from_env(job->environment, job->env_size, HANDED_DOWN, flags);
	return *wrong == (int)berth_option_count;
}

void flags_free(struct flag_values *flags)
{
	for (size_t i = 0; i < berth_option_count; i++)
		free(flags->value[i]);
	*flags = (struct flag_values){0};
}

const char *flags_value(const struct flag_values *flags, const char *name)
{
	for (size_t i = 0; i < berth_option_count; i++)
		if (flags->value[i] && !strcmp(berth_options[i].name, name))
			return flags->value[i];
	return NULL;
}

uint32_t flags_share(const struct flag_values *flags)
{
	const char *share = flags_value(flags, OPTION_SHARE);

	return share ? (uint32_t)strtoul(share, NULL, 10) : 0;
}

bool flags_ask_seat(const struct flag_values *flags)
{
	const char *tier = flags_value(flags, OPTION_TIER);

	return tier && !strncmp(tier, "opportunistic", 13);
}

bool flags_own_gpus(const struct flag_values *flags)
{
	return !flags_share(flags) && !flags_ask_seat(flags);
}
