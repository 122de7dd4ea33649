/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks slurmctld what it alone knows of a user: the partitions whose AllowGroups admit him, and his
 * AdminLevel in the accounting. No public header has these functions, so their absence must cost
 * the answer only.
 */
#include "request/request.h"

#include <dlfcn.h>
#include <string.h>

/* As slurmctld asks them itself of each job that comes, under the same lock. */
static part_record_t *(*find)(char *name);
static int (*admits)(part_record_t *partition, uid_t uid);
static bool (*operates)(uid_t uid);

void admitted_init(void)
{
	*(void **)&find = dlsym(RTLD_DEFAULT, "find_part_record");
	*(void **)&admits = dlsym(RTLD_DEFAULT, "validate_group");
	*(void **)&operates = dlsym(RTLD_DEFAULT, "validate_operator");
}

static void keep_admitted(char *names, uid_t uid, struct text *out)
{
	char *rest = NULL;

	for (char *name = strtok_r(names, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
		part_record_t *partition = find(name);

		if (!partition || admits(partition, uid) != 1)
			continue;
		if (out->len)
			text_add(out, ",");
		text_add(out, name);
	}
}

bool admitted_partitions(const job_desc_msg_t *job, uint32_t uid, struct text *out)
{
	struct text names;
	bool known;

	/* A job that names one partition is not asked about: there is no other to place it in. */
	if (!job->partition || !strchr(job->partition, ',') || !find || !admits)
		return false;
	text_init(&names, FOREIGN_TEXT_MAX);
	text_add(&names, job->partition);
	known = !names.failed;
	if (known)
		keep_admitted(names.data, (uid_t)uid, out);
	text_free(&names);
	return known && !out->failed;
}

bool admitted_operator(uint32_t uid)
{
	return operates && operates((uid_t)uid);
}
