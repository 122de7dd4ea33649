/* SPDX-License-Identifier: Apache-2.0 */
/* As much of Slurm's plugin interface as the plugin uses on a node, for tests without Slurm. */
#ifndef STEPD_SPANK_H
#define STEPD_SPANK_H

#include <stdbool.h>
#include <stdint.h>

#define SLURM_VERSION_NUM(major, minor, micro) (((major) << 16) + ((minor) << 8) + (micro))
#define SLURM_VERSION_NUMBER SLURM_VERSION_NUM(26, 5, 0)
#define SLURM_BATCH_SCRIPT 0xfffffffbu
#define SLURM_INTERACTIVE_STEP 0xfffffffau

enum { ESPANK_SUCCESS = 0, ESPANK_ERROR = 3000, ESPANK_ENV_NOEXIST = 3008 };
enum spank_item { S_JOB_UID, S_JOB_ID, S_JOB_STEPID, S_JOB_ENV, S_TASK_ID };

typedef int spank_err_t;
typedef struct spank_handle *spank_t;
typedef struct slurm_conf slurm_conf_t;

struct spank_option {
	char *name, *arginfo, *usage;
	int has_arg, val;
	int (*cb)(int val, const char *value, int remote);
};

spank_err_t spank_get_item(spank_t spank, enum spank_item item, ...);
spank_err_t spank_getenv(spank_t spank, const char *name, char *value, int size);
spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite);
spank_err_t spank_unsetenv(spank_t spank, const char *name);
spank_err_t spank_prepend_task_argv(spank_t spank, int argc, const char *argv[]);
spank_err_t spank_option_getopt(spank_t spank, struct spank_option *option, char **value);

#endif
