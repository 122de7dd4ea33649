/* SPDX-License-Identifier: Apache-2.0 */
/* Environment variables by which the parts of a pre-flight find each other. */
#ifndef BERTH_PREFLIGHT_NAMES_H
#define BERTH_PREFLIGHT_NAMES_H

/* In the environment of the second sbatch: seconds, and the tier that the site wants there. */
#define PREFLIGHT_SUBMIT "BERTH_PREFLIGHT_SUBMIT"
#define PREFLIGHT_TIER "BERTH_PREFLIGHT_TIER"
/* Where the second sbatch writes the id of what it has submitted. */
#define PREFLIGHT_ID_FD 3
/* Between the plugins of one command: its user gave --preflight, with this value. */
#define PREFLIGHT_ASKED "BERTH_PREFLIGHT_ASKED"
/* From cli_filter to SPANK, and from there into the job: its pre-flight's id, or that it is one. */
#define PREFLIGHT_JOB "BERTH_PREFLIGHT_JOB"
#define PREFLIGHT_SECONDS "BERTH_PREFLIGHT_SECONDS"
/* What the script and all that it starts see. */
#define PREFLIGHT_HERE "BERTH_PREFLIGHT"

#endif
