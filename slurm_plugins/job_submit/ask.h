/* SPDX-License-Identifier: Apache-2.0 */
/* Asking berthd, with everything that keeps slurmctld safe from it. */
#pragma once

#include "job_submit/job_submit.h"

enum outcome {
	OUTCOME_PLACE,
	OUTCOME_LATER,
	OUTCOME_PASS,
	OUTCOME_REFUSE,
	OUTCOME_DEAD,
	OUTCOME_TIMEOUT,
	OUTCOME_BAD,
	OUTCOME_OPEN,
	OUTCOME_LARGE, /* not asked: it would cost the others too much */
};

/* The configuration in use; read once, since `scontrol reconfigure` starts slurmctld anew. */
const struct hook_config *hook_config(void);

void ask_init(void);
void ask_fini(void);
/* Ask, check the answer into *reply (valid up to OUTCOME_REFUSE), and log. */
enum outcome ask_berthd(const job_desc_msg_t *job, uint32_t submit_uid,
			const struct flag_values *flags, struct reply *reply);
/* One line in hook_log, where there is one. */
void ask_log(enum outcome outcome, uint64_t started_us, const job_desc_msg_t *job,
	     uint32_t submit_uid);
