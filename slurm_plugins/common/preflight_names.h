/* SPDX-License-Identifier: Apache-2.0 */
/* Environment variables by which the parts of a pre-flight find each other. */
#ifndef BERTH_PREFLIGHT_NAMES_H
#define BERTH_PREFLIGHT_NAMES_H

/* Between the plugins of one command: its user gave --preflight, with this value. */
#define PREFLIGHT_ASKED "BERTH_PREFLIGHT_ASKED"
/* From cli_filter to SPANK, and from there into the job: its pre-flight's id. */
#define PREFLIGHT_JOB "BERTH_PREFLIGHT_JOB"
/* The same for a job that is a pre-flight: its seconds, and which failure ends the job itself. */
#define PREFLIGHT_SECONDS "BERTH_PREFLIGHT_SECONDS"
/* What the script and all that it starts see. */
#define PREFLIGHT_HERE "BERTH_PREFLIGHT"

#endif
