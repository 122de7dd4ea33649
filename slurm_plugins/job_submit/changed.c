/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A user's change of what a planned job asks for. The rest of the request is put beside it as its
 * user wrote it, in place of what a pin has made of it: berthd keeps that in a file for each job
 * (docs/develop/formats.md, section 1.5). So Slurm sees the change that it would see without Berth,
 * and berthd plans the job anew.
 */
#include "job_submit/job_submit.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job_submit/ask.h"

static const char asked_folder[] = "asked", changed_folder[] = "changed";

/* From as many tasks Slurm takes the most nodes of a job that does not say them; 0: any. */
static uint32_t nodes_of_tasks(const job_desc_msg_t *change, uint64_t tasks)
{
#ifdef JOB_IMPLICIT_MAX_NODES
	/* Slurm tests new GPUs of each node by the old number of tasks first. The word comes before
	   those that fill tres_per_node. */
	bool by_node = change->tres_per_node && *change->tres_per_node;

	if (change->num_tasks == NO_VAL || (by_node && change->num_tasks < tasks))
		return (uint32_t)tasks;
	return change->num_tasks;
#else
	(void)change, (void)tasks;
	return 0;
#endif
}

/* Of a change: which fields it does not set. Those that `clear` names are left unset again. */
static uint32_t unset_fields(job_desc_msg_t *change, uint32_t clear)
{
	char **texts[] = {&change->tres_per_job,  &change->tres_per_node, &change->tres_per_socket,
			  &change->tres_per_task, &change->cpus_per_tres, &change->mem_per_tres,
			  &change->tres_freq,	  &change->req_nodes,	  &change->exc_nodes,
			  &change->extra};
	uint32_t *numbers[] = {&change->min_nodes, &change->max_nodes, &change->min_cpus,
			       &change->num_tasks};
	uint16_t *small[] = {&change->cpus_per_task,   &change->pn_min_cpus,
			     &change->ntasks_per_node, &change->ntasks_per_socket,
			     &change->ntasks_per_tres, &change->sockets_per_node};
	uint32_t unset = 0, bit = 1;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++, bit <<= 1) {
		if (clear & bit)
			set_string(texts[i], NULL);
		unset |= *texts[i] ? 0 : bit;
	}
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++, bit <<= 1) {
		if (clear & bit)
			*numbers[i] = NO_VAL;
		unset |= *numbers[i] == NO_VAL ? bit : 0;
	}
	for (size_t i = 0; i < sizeof(small) / sizeof(small[0]); i++, bit <<= 1) {
		if (clear & bit)
			*small[i] = NO_VAL16;
		unset |= *small[i] == NO_VAL16 ? bit : 0;
	}
	if (clear & bit)
		change->pn_min_memory = NO_VAL64;
	return unset | (change->pn_min_memory == NO_VAL64 ? bit : 0);
}

/*
 * At the end of spank_job_env, which Slurm reads of no change. A user who writes it undoes his own
 * change.
 */
static const char as_written[] = "BERTH_CHANGE=";

static const char *noted(const job_desc_msg_t *change)
{
	const char *last = change->spank_job_env && change->spank_job_env_size
			       ? change->spank_job_env[change->spank_job_env_size - 1]
			       : NULL;
	bool is = last && !strncmp(last, as_written, strlen(as_written));

	return is ? last + strlen(as_written) : NULL;
}

/* Slurm hands one change to each component of a heterogeneous job and each task of an array. */
void change_restore(job_desc_msg_t *change)
{
	const char *note = noted(change);
	char *flags;

	if (!note)
		return;
	unset_fields(change, (uint32_t)strtoul(note, &flags, 10));
	change->bitflags = strtoull(flags, NULL, 10);
}

static bool note_as_written(job_desc_msg_t *change)
{
	char word[64];

	if (noted(change))
		return true;
	snprintf(word, sizeof(word), "%s%" PRIu32 " %" PRIu64, as_written, unset_fields(change, 0),
		 (uint64_t)change->bitflags);
	return add_word(&change->spank_job_env, &change->spank_job_env_size, word);
}

/* A number that the change does not say itself. */
static void fill_number(job_desc_msg_t *change, const char *name, uint64_t number)
{
	if (!strcmp(name, "min_nodes") && change->min_nodes == NO_VAL)
		change->min_nodes = (uint32_t)number;
	else if (!strcmp(name, "max_nodes") && change->max_nodes == NO_VAL)
		change->max_nodes = (uint32_t)number;
	else if (!strcmp(name, "max_nodes_of_tasks") && change->max_nodes == NO_VAL)
		change->max_nodes = nodes_of_tasks(change, number);
	else if (!strcmp(name, "cpus_per_task") && change->cpus_per_task == NO_VAL16 &&
		 !(change->tres_per_task && *change->tres_per_task))
		/* Of a task with GPUs Slurm counts them itself, and refuses another number. */
		change->cpus_per_task = (uint16_t)number;
	else if (!strcmp(name, "pn_min_cpus") && change->pn_min_cpus == NO_VAL16)
		change->pn_min_cpus = (uint16_t)number;
	else if (!strcmp(name, "pn_min_memory") && change->pn_min_memory == NO_VAL64)
		change->pn_min_memory = number;
}

/* What the change says itself stays; a name that this Berth does not know is passed over. */
static void fill(job_desc_msg_t *change, const char *name, const char *value)
{
	const struct {
		const char *name;
		char **field;
	} texts[] = {
	    {"tres_per_job", &change->tres_per_job},   {"tres_per_node", &change->tres_per_node},
	    {"tres_per_task", &change->tres_per_task}, {"cpus_per_tres", &change->cpus_per_tres},
	    {"mem_per_tres", &change->mem_per_tres},   {"req_nodes", &change->req_nodes},
	    {"exc_nodes", &change->exc_nodes},	       {"extra", &change->extra},
	};
	uint64_t number;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (!strcmp(name, texts[i].name) && !*texts[i].field)
			set_string(texts[i].field, value);
	if (parse_number(value, NO_VAL - 1, &number))
		fill_number(change, name, number);
}

static const char *path_of(char path[PATH_MAX], const char *folder, uint32_t id)
{
	snprintf(path, PATH_MAX, "%s.%s/%" PRIu32, hook_config()->pinned_file, folder, id);
	return path;
}

static bool read_asked(struct asked *asked, uint32_t id)
{
	char path[PATH_MAX];
	int fd = open(path_of(path, asked_folder, id), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	ssize_t len = fd < 0 ? 0 : read(fd, asked->words, sizeof(asked->words));

	if (fd >= 0)
		close(fd);
	/* One that is cut short, or too long, is none. */
	if (len <= 0 || (size_t)len == sizeof(asked->words) || asked->words[len - 1] != '\n')
		return false;
	asked->words[len - 1] = '\0';
	asked->from = id;
	return true;
}

void change_look_up_asked(const struct listed *job, struct asked *asked)
{
	/* A task that has just got a record of its own is as its array was. */
	const uint32_t ids[] = {job->id, job->array};
	char path[PATH_MAX];

	asked->from = 0;
	asked->changed = false;
	for (size_t i = 0; i < 2 && *hook_config()->pinned_file; i++) {
		if (!ids[i] || read_asked(asked, ids[i]))
			return;
		asked->changed = !access(path_of(path, changed_folder, ids[i]), F_OK);
		if (asked->changed)
			return;
	}
}

/* Anew each time: berthd takes a mark away once it has read the job later than that. */
static void leave_mark(const char *folder, uint32_t id, const char *text)
{
	char path[PATH_MAX];
	int fd = open(path_of(path, folder, id), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	ssize_t written;

	if (fd < 0)
		return;
	/* A text that is cut short does no harm: berthd looks at the job's record, too. */
	written = write(fd, text, strlen(text));
	(void)written;
	close(fd);
}

void change_mark(const struct listed *job)
{
	leave_mark(changed_folder, job->id, "");
}

void change_mark_excluded(const struct listed *job, const char *nodes)
{
	/* berthd may not know yet that the task has a record of its own. */
	if (job->array && job->array != job->id)
		leave_mark("excluded", job->array, "");
	/* The job may have this very list from Berth: from now on it is its user's. */
	leave_mark("excluded", job->id, strlen(nodes) < SEGMENT_BODY_MAX ? nodes : "");
}

void change_complete(job_desc_msg_t *change, const struct listed *job, struct asked *asked,
		     bool request)
{
	char from[PATH_MAX], to[PATH_MAX], *rest = asked->words, *word;
	bool extra_changed;

	if (!asked->from) {
		/* berthd may be about to give the job a place by what it asked for before. */
		if (request && change_touches_gpus(change) && !asked->changed)
			change_mark(job);
		return;
	}
	/* Of Extra alone, so that the file has its user's words of before. */
	extra_changed = !access(path_of(to, changed_folder, asked->from), F_OK);
	/* berthd reads of these that something is to be planned, or written, anew. */
	path_of(to, changed_folder, job->id);
	if (!request || asked->from != job->id || rename(path_of(from, asked_folder, job->id), to))
		change_mark(job);
	request = request && note_as_written(change);
	while (request && (word = strsep(&rest, " "))) {
		char *value = strchr(word, '=');

		if (value)
			*value++ = '\0';
		if (value && unescape(value) && !(extra_changed && !strcmp(word, "extra")))
			fill(change, word, value);
	}
}
