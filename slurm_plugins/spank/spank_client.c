/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/spank_client.h"

#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/client_side.h"
#include "common/messages.h"
#include "config/options.h"
#include "text/limits.h"

#define USAGE_MAX 160
#define FLAGS_MAX 16

/* A flag's value in the user's own environment; NULL: none. */
static char *in_environment[FLAGS_MAX];
/* Those of the part of a job whose options are read now. */
static char of_part[FLAGS_MAX][FLAG_VALUE_MAX + 1];
static bool given[FLAGS_MAX];

/* SLURM_SPANK__SLURM_SPANK_OPTION_berth_gpu_share; without HANDED_DOWN it is the job's own name. */
static void variable_of(const struct berth_option *option, char name[USAGE_MAX])
{
	snprintf(name, USAGE_MAX, HANDED_DOWN OPTION_ENV_PREFIX "%s", option->name);
	for (char *c = name; *c; c++)
		if (*c == '-')
			*c = '_';
}

static int on_option(int index, const char *value, int remote)
{
	const struct berth_option *option = &berth_options[index];
	char variable[USAGE_MAX];

	/* On the node it is too late to ask for a better value, and a failure drains the node. */
	if (remote)
		return ESPANK_SUCCESS;
	/* Slurm has put the flags of the part before this one there, and hands in the very text. */
	variable_of(option, variable);
	if (value && value == getenv(variable)) {
		value = in_environment[index];
		if (!value)
			return ESPANK_SUCCESS;
	}
	/* Slurm's own text for a flag without a value, as an outer job's environment passes it on.
	 */
	if (value && option->takes == VALUE_OPTIONAL && !strcmp(value, "(null)"))
		value = NULL;
	if (option_value_ok(option, value)) {
		snprintf(of_part[index], sizeof(of_part[index]), "%s", value ? value : "");
		given[index] = true;
		if (!strcmp(option->name, OPTION_SHARE))
			setenv(SHARE_ASKED, "1", 1);
		if (!strcmp(option->name, OPTION_PREFLIGHT))
			setenv(PREFLIGHT_ASKED, value ? value : "", 1);
		return ESPANK_SUCCESS;
	}
	slurm_error("--%s=%s: want %s" BERTH_ID(401), option->name, value ? value : "",
		    option->right);
	return ESPANK_BAD_ARG;
}

static int on_option_unchecked(int index, const char *value, int remote)
{
	(void)index;
	(void)value;
	(void)remote;
	return ESPANK_SUCCESS;
}

int spank_client_register(spank_t spank, int checked)
{
	/* By the flags of this command alone, whatever its environment has. */
	if (checked)
		unsetenv(SHARE_ASKED);
	for (size_t i = 0; i < berth_option_count; i++) {
		const struct berth_option *option = &berth_options[i];
		char usage[USAGE_MAX], variable[USAGE_MAX];
		/* Slurm copies all of it. */
		struct spank_option registered = {
		    .name = (char *)option->name,
		    .arginfo = (char *)option->argument,
		    .usage = usage,
		    .has_arg =
			option->takes == VALUE_OPTIONAL ? optional_argument : required_argument,
		    .val = (int)i,
		    .cb = checked ? on_option : on_option_unchecked,
		};

		variable_of(option, variable);
		if (checked && getenv(variable))
			in_environment[i] = strdup(getenv(variable));
		snprintf(usage, sizeof(usage), "[berth] %s", option->usage);
		if (spank_option_register(spank, &registered) != ESPANK_SUCCESS) {
			slurm_error("berth: cannot register --%s; is another plugin using that "
				    "name?" BERTH_ID(841),
				    option->name);
			return -1;
		}
	}
	return 0;
}

static void forget_flag(const struct berth_option *option)
{
	char variable[USAGE_MAX];

	variable_of(option, variable);
	unsetenv(variable);
	unsetenv(variable + strlen(HANDED_DOWN));
}

/* What cli_filter says, it says later; what is there already is an outer job's, or anybody's. */
static void forget_preflight(void)
{
	unsetenv(PREFLIGHT_ASKED);
	unsetenv(PREFLIGHT_JOB);
	unsetenv(PREFLIGHT_SECONDS);
	unsetenv(HANDED_DOWN PREFLIGHT_JOB);
	unsetenv(HANDED_DOWN PREFLIGHT_SECONDS);
}

/*
 * Slurm hands the flags of a job to its tasks, and takes them for those of whatever is submitted
 * there. The shell of salloc has them in the other of the two forms, too.
 */
void spank_client_forget_outer_job(void)
{
	forget_preflight();
	if (!inside_allocation())
		return;
	unsetenv(SHARDS_HERE);
	unsetenv(GUEST_HERE);
	unsetenv(SEAT_ASKED);
	for (size_t i = 0; i < berth_option_count; i++)
		forget_flag(&berth_options[i]);
}

void spank_client_prepare_srun(void)
{
	if (inside_allocation() && !client_leaves_requests(getenv("SLURM_JOB_PARTITION")))
		client_strip_environment();
}

/*
 * Slurm gives each part of a heterogeneous job the flags of all parts before it: here it gets back
 * those that it was given itself.
 */
void spank_client_part_the_flags(spank_t spank)
{
	if (spank_context() == S_CTX_LOCAL && inside_allocation())
		return;
	for (size_t i = 0; i < berth_option_count; i++) {
		char variable[USAGE_MAX];
		const char *own = variable + strlen(HANDED_DOWN);

		variable_of(&berth_options[i], variable);
		if (given[i]) {
			spank_job_control_setenv(spank, own, of_part[i], 1);
			setenv(own, of_part[i], 1);
		} else {
			spank_job_control_unsetenv(spank, own);
			forget_flag(&berth_options[i]);
		}
		given[i] = false;
	}
}

static void hand_on(spank_t spank, const char *name)
{
	const char *value = getenv(name);

	if (value && spank_job_control_setenv(spank, name, value, 1) != ESPANK_SUCCESS)
		slurm_info("berth: %s could not be handed to the job" BERTH_ID(842), name);
	unsetenv(name);
}

void spank_client_hand_on_preflight(spank_t spank)
{
	/* The job goes on: no error. */
	if (getenv(PREFLIGHT_ASKED) && !client_is_silent())
		slurm_info("berth: no pre-flight: it needs sbatch, and CliFilterPlugins=berth in "
			   "slurm.conf" BERTH_ID(843));
	unsetenv(PREFLIGHT_ASKED);
	hand_on(spank, PREFLIGHT_JOB);
	hand_on(spank, PREFLIGHT_SECONDS);
}
