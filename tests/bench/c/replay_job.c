/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The batch script's interpreter in the replay benchmark: "#!.../replay_job
 * SECONDS CLASS NAME".
 *
 * Sleeps SECONDS times the stretch of the GPUs that this job really has, which
 * Slurm's batch environment tells, and logs when it started and ended. Nothing
 * of Berth is asked: the stretch comes from a table
 * (tests/bench/replay/stretch.py writes it), the same for every scheduler.
 *
 * The folder ../ of this program holds `table`, and takes `jobs.log`.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NODES_MAX 64
#define GPUS_MAX 8
#define NAME_MAX_LEN 64

enum level { NVLINK, NODE, LEAF, POD, ANY, LEVELS };
static const char *const level_names[LEVELS] = {"nvlink", "node", "leaf", "pod", "any"};

struct node {
	int leaf, pod;
	double slow[GPUS_MAX];
	unsigned linked[GPUS_MAX]; /* a bit for each GPU that NVLink joins to this one */
};

struct place {
	int nodes;
	char names[NODES_MAX][NAME_MAX_LEN];
	unsigned gpus; /* the same on each node */
};

struct table {
	double sensitivity;
	double level[LEVELS];
	struct node nodes[NODES_MAX]; /* those of the place, in its order */
};

static void fail(const char *what, const char *about)
{
	fprintf(stderr, "replay_job: %s: %s\n", what, about);
	exit(3);
}

static void add_node(struct place *place, const char *prefix, int prefix_len, const char *number,
		     int width)
{
	if (place->nodes == NODES_MAX)
		fail("more nodes than it can hold", number);
	snprintf(place->names[place->nodes++], NAME_MAX_LEN, "%.*s%.*s", prefix_len, prefix, width,
		 number);
}

/* "n[1-3,7]" after the bracket; returns what follows the closing one. */
static const char *read_ranges(const char *s, const char *prefix, int prefix_len,
			       struct place *place)
{
	while (*s && *s != ']') {
		char *end, text[16];
		long from = strtol(s, &end, 10);
		long to = *end == '-' ? strtol(end + 1, &end, 10) : from;

		if (end == s)
			fail("no number in the node list", s);
		for (long i = from; i <= to; i++) {
			snprintf(text, sizeof(text), "%ld", i);
			add_node(place, prefix, prefix_len, text, (int)strlen(text));
		}
		s = *end == ',' ? end + 1 : end;
	}
	return *s ? s + 1 : s;
}

/* Slurm's compressed form with one pair of brackets a name, numbers without
 * leading zeros. */
static void read_nodes(const char *s, struct place *place)
{
	while (*s) {
		const char *prefix = s;

		s += strcspn(s, "[,");
		if (*s == '[')
			s = read_ranges(s + 1, prefix, (int)(s - prefix), place);
		else
			add_node(place, prefix, (int)(s - prefix), "", 0);
		if (*s == ',')
			s++;
	}
}

static unsigned read_gpus(const char *s)
{
	unsigned gpus = 0;

	while (s && *s) {
		char *end;
		long gpu = strtol(s, &end, 10);

		if (end == s || gpu < 0 || gpu >= GPUS_MAX)
			fail("SLURM_JOB_GPUS is not a list of positions", s);
		gpus |= 1u << gpu;
		s = *end ? end + 1 : end;
	}
	return gpus;
}

static void read_node_line(char *words, struct table *table, const struct place *place)
{
	char *rest, *name = strtok_r(words, " \n", &rest);
	int at = 0;
	struct node *node;

	while (at < place->nodes && (!name || strcmp(place->names[at], name)))
		at++;
	if (at == place->nodes)
		return;
	node = &table->nodes[at];
	node->leaf = atoi(strtok_r(NULL, " \n", &rest));
	node->pod = atoi(strtok_r(NULL, " \n", &rest));
	for (int gpu = 0; gpu < GPUS_MAX; gpu++) {
		const char *word = strtok_r(NULL, " \n", &rest);

		if (!word || sscanf(word, "%lf:%x", &node->slow[gpu], &node->linked[gpu]) != 2)
			fail("a line of the table is too short", name);
	}
}

/* Keeps only what this job needs. */
static void read_table(const char *path, const char *class, const struct place *place,
		       struct table *table)
{
	FILE *file = fopen(path, "re");
	char line[512], name[32];
	double value;

	if (!file)
		fail(strerror(errno), path);
	table->sensitivity = -1;
	for (int at = 0; at < place->nodes; at++)
		table->nodes[at].leaf = -1;
	while (fgets(line, sizeof(line), file)) {
		if (!strncmp(line, "node ", 5)) {
			read_node_line(line + 5, table, place);
		} else if (sscanf(line, "level %31s %lf", name, &value) == 2) {
			for (int level = 0; level < LEVELS; level++)
				if (!strcmp(level_names[level], name))
					table->level[level] = value;
		} else if (sscanf(line, "sensitivity %31s %lf", name, &value) == 2) {
			if (!strcmp(name, class))
				table->sensitivity = value;
		}
	}
	fclose(file);
	if (table->sensitivity < 0)
		fail("the table has no such class", class);
	for (int at = 0; at < place->nodes; at++)
		if (table->nodes[at].leaf < 0)
			fail("the table has no such node", place->names[at]);
}

static bool all_linked(const struct node *node, unsigned gpus)
{
	for (int gpu = 0; gpu < GPUS_MAX; gpu++)
		if (gpus & 1u << gpu && gpus & ~(1u << gpu) & ~node->linked[gpu])
			return false;
	return true;
}

/* The widest level that the place's GPUs span. */
static enum level level_of(const struct place *place, const struct table *table)
{
	enum level level = LEAF;

	if (place->nodes == 1)
		return all_linked(&table->nodes[0], place->gpus) ? NVLINK : NODE;
	for (int at = 1; at < place->nodes; at++) {
		if (table->nodes[at].pod != table->nodes[0].pod)
			return ANY;
		if (table->nodes[at].leaf != table->nodes[0].leaf)
			level = POD;
	}
	return level;
}

static double stretch_of(const struct place *place, const struct table *table, enum level level)
{
	double worst = 0;

	for (int at = 0; at < place->nodes; at++)
		for (int gpu = 0; gpu < GPUS_MAX; gpu++) {
			double slow = 1 + table->sensitivity * (table->nodes[at].slow[gpu] - 1);

			if (place->gpus & 1u << gpu && slow > worst)
				worst = slow;
		}
	return worst * table->level[level];
}

static double now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_REALTIME, &at);
	return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

/* One write a line, so that lines of many jobs never mix. */
static void log_line(const char *path, const char *line)
{
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);

	if (fd < 0 || write(fd, line, strlen(line)) < 0)
		fail(strerror(errno), path);
	close(fd);
}

static void sleep_until(double end)
{
	struct timespec at = {.tv_sec = (time_t)end};

	at.tv_nsec = (long)((end - (double)at.tv_sec) * 1e9);
	while (clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &at, NULL) == EINTR)
		;
}

static const char *env_or(const char *name, const char *otherwise)
{
	const char *value = getenv(name);

	return value && *value ? value : otherwise;
}

static void own_folder(char *path, size_t size)
{
	ssize_t len = readlink("/proc/self/exe", path, size - 1);

	path[len < 0 ? 0 : len] = '\0';
	for (int up = 0; up < 2 && strrchr(path, '/'); up++)
		*strrchr(path, '/') = '\0';
}

int main(int argc, char **argv)
{
	char class[32], name[32], folder[PATH_MAX], table_path[PATH_MAX + 8],
	    log_path[PATH_MAX + 16];
	char line[2048];
	double seconds, started = now(), stretch = 1;
	struct place place = {0};
	struct table table = {0};
	const char *level = "none";

	if (argc < 2 || sscanf(argv[1], "%lf %31s %31s", &seconds, class, name) != 3)
		fail("usage", "replay_job 'SECONDS CLASS NAME', as the interpreter of a "
			      "batch script");
	own_folder(folder, sizeof(folder));
	snprintf(table_path, sizeof(table_path), "%s/table", folder);
	snprintf(log_path, sizeof(log_path), "%s/jobs.log", folder);
	read_nodes(env_or("SLURM_JOB_NODELIST", ""), &place);
	place.gpus = read_gpus(getenv("SLURM_JOB_GPUS"));
	if (place.gpus) {
		read_table(table_path, class, &place, &table);
		level = level_names[level_of(&place, &table)];
		stretch = stretch_of(&place, &table, level_of(&place, &table));
	}
	snprintf(line, sizeof(line), "start\t%s\t%s\t%.3f\t%.6f\t%s\t%s\t%s\t%s\n", name,
		 env_or("SLURM_JOB_ID", "0"), started, stretch, level,
		 env_or("SLURM_JOB_NODELIST", ""), env_or("SLURM_JOB_GPUS", ""),
		 env_or("SLURM_RESTART_COUNT", "0"));
	log_line(log_path, line);
	sleep_until(started + seconds * stretch);
	snprintf(line, sizeof(line), "end\t%s\t%s\t%.3f\n", name, env_or("SLURM_JOB_ID", "0"),
		 now());
	log_line(log_path, line);
	return 0;
}
