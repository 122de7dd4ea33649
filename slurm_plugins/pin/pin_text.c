/* SPDX-License-Identifier: Apache-2.0 */
#include "pin/pin_text.h"

#include <inttypes.h>

#include "pin/segment.h"
#include "text/hostlist.h"
#include "text/tres.h"

static void add_berth(struct text *body, const struct reply *reply, const char *nodes)
{
	segment_add(body, "nodes", nodes);
	text_add(body, " gpus=");
	for (size_t i = 0; i < reply->gpu_count; i++)
		text_addf(body, "%s%u", i ? "," : "", reply->gpus[i]);
	if (reply->share)
		text_addf(body, " share=%" PRIu32, reply->share);
	if (reply->asked_share && reply->asked_share < reply->share)
		text_addf(body, " asked_share=%" PRIu32, reply->asked_share);
	if (reply->way && !reply->share)
		segment_add(body, "tier", reply->guest ? "opportunistic" : "guaranteed");
	if (reply->gpu_mem)
		text_addf(body, " mem=%" PRIu64, reply->gpu_mem);
	if (reply->way)
		segment_add(body, "way", reply->way);
}

static bool extra_with(const struct reply *reply, const char *nodes, const char *own,
		       struct text *extra)
{
	struct text body;

	text_init(&body, SLURM_TEXT_MAX);
	text_init(extra, SLURM_TEXT_MAX);
	add_berth(&body, reply, nodes);
	segment_set(extra, own, text_str(&body));
	extra->failed = extra->failed || body.failed;
	text_free(&body);
	return !extra->failed;
}

/* Names in full are for people, and for nodes with an older Berth: folded where they do not fit. */
bool pin_extra(const struct reply *reply, const char *own, struct text *extra)
{
	struct text folded;
	bool ok;

	if (extra_with(reply, reply->nodes, own, extra))
		return true;
	text_free(extra);
	text_init(&folded, SLURM_TEXT_MAX);
	hostlist_fold(reply->nodes, &folded);
	ok = !folded.failed && extra_with(reply, text_str(&folded), own, extra);
	text_free(&folded);
	return ok;
}

static void add_typed(struct text *tres, const char *name, const struct reply *reply, size_t count)
{
	for (size_t i = 0; i < reply->gpu_count; i++)
		text_addf(tres, "%sgres/%s:g%u:%zu", tres->len ? "," : "", name, reply->gpus[i],
			  count);
}

bool pin_tres(const struct reply *reply, const char *own, size_t count, struct text *tres)
{
	text_init(tres, SLURM_TEXT_MAX);
	/* Also for a job that gets a share: until it is pinned it must not start beside others. */
	if (reply->verb == REPLY_LATER)
		text_addf(tres, "gres/gpu:%zu", reply->gpu_count);
	else if (reply->guest)
		add_typed(tres, "seat", reply, 1);
	else if (reply->share)
		add_typed(tres, "shard", reply, reply->share);
	else
		add_typed(tres, "gpu", reply, count);
	if (reply->seats)
		add_typed(tres, "seat", reply, count);
	tres_keep_others(own, tres);
	return !tres->failed;
}
