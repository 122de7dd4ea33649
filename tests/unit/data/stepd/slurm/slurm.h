/* SPDX-License-Identifier: Apache-2.0 */
#include "spank.h"

#define SLURM_SUCCESS 0
#define SLURM_ERROR (-1)
