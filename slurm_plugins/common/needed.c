/* SPDX-License-Identifier: Apache-2.0 */
#include "common/needed.h"

#include <stdio.h>
#include <unistd.h>

#include "common/messages.h"
#include "common/slurm_api.h"

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 6, 0)
#warning                                                                                           \
    "Berth was tested with Slurm 24.11 to 26.05, and this one is newer: run berth doctor release"
#endif

#define MISSING                                                                                    \
	"berth: this Slurm has no %s, which Berth needs, so its plugin does nothing; get a Berth " \
	"for this release" BERTH_ID(832)

bool slurm_has(const struct needed *needed, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (needed[i].address)
			continue;
		if (slurm_error)
			slurm_error(MISSING, needed[i].name);
		else
			dprintf(STDERR_FILENO, MISSING "\n", needed[i].name);
		return false;
	}
	return true;
}
