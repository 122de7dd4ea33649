/* SPDX-License-Identifier: Apache-2.0 */
/* SPANK's header, with what the plugin calls as weak symbols (common/needed.h). */
#pragma once

#include <slurm/spank.h>

#pragma weak slurm_error
#pragma weak slurm_info
#pragma weak spank_context
#pragma weak spank_get_item
#pragma weak spank_getenv
#pragma weak spank_job_control_setenv
#pragma weak spank_job_control_unsetenv
#pragma weak spank_option_getopt
#pragma weak spank_option_register
#pragma weak spank_prepend_task_argv
#pragma weak spank_setenv
#pragma weak spank_unsetenv
