/* SPDX-License-Identifier: Apache-2.0 */
/* What Slurm's library exports to its cli_filter plugins of a command's options. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/slurm_api.h"

typedef struct slurm_options slurm_opt_t;

/* What get returns is the caller's. */
extern char *slurm_option_get(slurm_opt_t *opt, const char *name) WEAK;
extern int slurm_option_set(slurm_opt_t *opt, const char *name, const char *value, bool early) WEAK;
extern bool slurm_option_reset(slurm_opt_t *opt, const char *name) WEAK;
extern bool slurm_option_isset(slurm_opt_t *opt, const char *name) WEAK;

struct tres_found;

/* Slurm says "invalid-context" when another command is asked for an option that only one has. */
bool option_is_ours(slurm_opt_t *opt, const char *name);
/* What a request names, before anything is changed: --gpus=a100:1,v100:1 counts as two models. */
void requests_scan(slurm_opt_t *opt, struct tres_found *found);
/* The GPUs of one option: of a node, a task or the whole job, as the option's name says. */
uint64_t requests_gpus(slurm_opt_t *opt, const char *name);
/* No GPUs are asked for any more; what a request asks beside them stays. */
int requests_drop_gpus(slurm_opt_t *opt);
