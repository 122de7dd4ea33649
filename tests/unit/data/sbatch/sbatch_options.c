/* SPDX-License-Identifier: Apache-2.0 */
/* sbatch's options, as Slurm's library has them for a plugin. */
#include "sbatch_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/slurm_api.h"
#include "text/tres.h"

#define MOST 64

static struct {
	char name[32], value[256];
	bool set;
} options[MOST];
static int count;

static int index_of(const char *name)
{
	int i = 0;

	while (i < count && strcmp(options[i].name, name))
		i++;
	if (i == count && count < MOST)
		snprintf(options[count++].name, sizeof(options[0].name), "%s", name);
	return i;
}

char *slurm_option_get(slurm_opt_t *opt, const char *name)
{
	int i = index_of(name);

	(void)opt;
	return options[i].set ? strdup(options[i].value) : NULL;
}

int slurm_option_set(slurm_opt_t *opt, const char *name, const char *value, bool early)
{
	int i = index_of(name);

	(void)opt;
	(void)early;
	snprintf(options[i].value, sizeof(options[i].value), "%s", value ? value : "");
	options[i].set = true;
	return 0;
}

bool slurm_option_reset(slurm_opt_t *opt, const char *name)
{
	(void)opt;
	options[index_of(name)].set = false;
	return true;
}

bool slurm_option_isset(slurm_opt_t *opt, const char *name)
{
	(void)opt;
	return options[index_of(name)].set;
}

void slurm_xfree(void **item)
{
	free(*item);
	*item = NULL;
}

void requests_scan(slurm_opt_t *opt, struct tres_found *found)
{
	char *gres = slurm_option_get(opt, "gres");

	*found = (struct tres_found){0};
	tres_scan(gres, found);
	free(gres);
}

uint64_t requests_gpus(slurm_opt_t *opt, const char *name)
{
	bool whole = !strcmp(name, "gres") || !strcmp(name, "tres-per-task");
	char *value = slurm_option_get(opt, name), element[300];
	struct tres_found found = {0};

	snprintf(element, sizeof(element), "%s%s", whole ? "" : "gres/gpu:", value ? value : "");
	if (value)
		tres_scan(element, &found);
	free(value);
	return found.gpus;
}

int requests_drop_gpus(slurm_opt_t *opt)
{
	slurm_option_reset(opt, "gres");
	return 0;
}

void options_read(char *word)
{
	char *value = strchr(word, '=');

	*value++ = '\0';
	slurm_option_set(NULL, word, value, false);
}

void options_print(void)
{
	for (int i = 0; i < count; i++)
		if (options[i].set)
			printf("%s=%s\n", options[i].name, options[i].value);
}
