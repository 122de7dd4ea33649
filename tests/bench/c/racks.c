/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays jobs on racks of trays under one rule of placement: "racks RULE FROM UNTIL [DELAY] < jobs
 * > starts". Slurm's order: by submission, a reservation for the first job that finds no room,
 * backfill behind it by time limits. A pass every minute in which something changed.
 *
 * A line of the input, sorted by time:
 *   job AT GPUS SECONDS LIMIT SEGMENT GROUP   SEGMENT and GROUP in trays, SEGMENT 0 for none
 *   down AT RACK TRAY SECONDS                 the tray's jobs begin again, with what they had left,
 *                                             DELAY seconds later at the earliest
 * A line of the output, one for each job, in their order: WAIT SPREAD CROSSING GROUPS, where SPREAD
 * is the most racks that a group lies in; WAIT is -1 of a job that never began. The last line:
 * "busy", the part of the GPU time of healthy trays from FROM to UNTIL that jobs had, and the mean
 * number of trays then that jobs on parts of trays have broken; then how many jobs that lost a tray
 * began again, the mean of their seconds until then, and these seconds by their GPUs in hours.
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef RACKS
#define RACKS 278
#define TRAYS 18
#define GPUS 4
#endif
#define ALL (RACKS * TRAYS)
#define DOWN 64
#define PASS 60.0
#define ROOM 4 /* that of policy/cluster/segments.py */
#define SHAPES (16 * ALL / GPUS)

enum rule { BLIND, BLOCK, FIT, BERTH, FLUID, RULES };
static const char *const names[RULES] = {"blind", "block", "fit", "berth", "fluid"};

struct job {
	double at, left, limit, began, ends, first, lost;
	int gpus, trays, segment, group, shape, spread, crossing, groups;
	int *held; /* trays */
};

struct fault {
	double at, until;
	int tray;
};

static enum rule rule;
static struct job *jobs;
static struct fault *faults;
static int n_jobs, n_faults;

static int8_t left_now[ALL]; /* free GPUs; DOWN is taken off while a tray is down */
static bool kept[ALL];	     /* of the reservation */
static int *waiting, n_waiting, *running, n_running;
static double delay, restarts, restart_seconds, restart_hours;
static bool delayed;

static int whole_of(const int8_t *left, int rack)
{
	int count = 0;

	for (int i = rack * TRAYS; i < (rack + 1) * TRAYS; i++)
		count += left[i] == GPUS;
	return count;
}

static bool able(const int8_t *left, const bool *without, int tray, int gpus)
{
	return left[tray] >= gpus && !(without && without[tray]);
}

/* A part of a tray: the first tray of the shortest run (flat), or of the rack with fewest (block).
 */
static int part_of_slurm(const int8_t *left, const bool *without, int gpus)
{
	int best = -1, fewest = ALL + 1;

	if (rule == BLIND) {
		for (int i = 0; i < ALL; i++) {
			int begin = i;

			while (i < ALL && able(left, without, i, gpus))
				i++;
			if (i > begin && i - begin < fewest) {
				fewest = i - begin;
				best = begin;
			}
		}
		return best;
	}
	for (int rack = 0; rack < RACKS; rack++) {
		int count = 0, first = -1;

		for (int i = (rack + 1) * TRAYS - 1; i >= rack * TRAYS; i--)
			if (able(left, without, i, gpus)) {
				count++;
				first = i;
			}
		if (count && count <= fewest) {
			fewest = count;
			best = first;
		}
	}
	return best;
}

/* Berth's: the fullest tray, and of these one of the rack with the fewest whole trays. */
static int part_of_berth(const int8_t *left, const bool *without, int gpus)
{
	int best = -1, least = GPUS + 1, fewest = TRAYS + 1;

	for (int rack = 0; rack < RACKS; rack++) {
		int whole = -1;

		for (int i = rack * TRAYS; i < (rack + 1) * TRAYS; i++) {
			if (!able(left, without, i, gpus) || left[i] > least)
				continue;
			if (whole < 0)
				whole = whole_of(left, rack);
			if (left[i] < least || whole < fewest) {
				least = left[i];
				fewest = whole;
				best = i;
			}
		}
	}
	return best;
}

static void take_in(const int8_t *left, const bool *without, int rack, int count, int *out,
		    int *taken)
{
	for (int i = rack * TRAYS; i < (rack + 1) * TRAYS && count; i++)
		if (able(left, without, i, GPUS)) {
			out[(*taken)++] = i;
			count--;
		}
}

/* As _choose_best_bblock: the smallest rack that holds the rest, else the largest, on few racks. */
static bool few_racks(const int8_t *left, const bool *without, int trays, int *whole, int *out)
{
	int most = (trays + TRAYS - 1) / TRAYS, taken = 0;

	for (int used = 0; used < most && taken < trays; used++) {
		int best = -1, rest = trays - taken;

		for (int rack = 0; rack < RACKS; rack++) {
			bool fits = whole[rack] >= rest, fitted = best >= 0 && whole[best] >= rest;

			if (whole[rack] <= 0)
				continue;
			if (best < 0 || (fits && (!fitted || whole[rack] <= whole[best])) ||
			    (!fits && !fitted && whole[rack] >= whole[best]))
				best = rack;
		}
		if (best < 0)
			return false;
		take_in(left, without, best, whole[best] < rest ? whole[best] : rest, out, &taken);
		whole[best] = 0;
	}
	return taken == trays;
}

static void count_whole(const int8_t *left, const bool *without, int *whole)
{
	static uint8_t is_whole[ALL];

	for (int i = 0; i < ALL; i++)
		is_whole[i] = left[i] == GPUS;
	for (int i = 0; without && i < ALL; i++)
		is_whole[i] &= !without[i];
	for (int rack = 0; rack < RACKS; rack++) {
		whole[rack] = 0;
		for (int i = 0; i < TRAYS; i++)
			whole[rack] += is_whole[rack * TRAYS + i];
	}
}

/* Berth's, as policy/cluster/segments.py: the longest segments with plenty of room at submission.
 */
static void settle_segment(struct job *job)
{
	int whole[RACKS];

	if (rule == BERTH && job->segment) {
		count_whole(left_now, NULL, whole);
		for (int size = TRAYS; size > job->segment; size--) {
			int could = 0;

			if (size % job->segment || job->trays % size)
				continue;
			for (int rack = 0; rack < RACKS; rack++)
				could += whole[rack] / size * size;
			if (could < ROOM * job->trays)
				continue;
			job->segment = size;
			break;
		}
	}
	job->shape = (int)log2(job->gpus) * ALL / GPUS + job->segment;
}

/* Slurm's order of racks: the fewest that suffice. Best fit: the least left over, then the fewest.
 */
static int rank_of(int whole, int segment)
{
	return rule == FIT ? whole % segment * (TRAYS + 1) + whole : whole;
}

static bool by_segments(const int8_t *left, const bool *without, int segments, int segment,
			const int *whole, int *out)
{
	enum { RANKS = TRAYS * (TRAYS + 1) + TRAYS + 1 };
	int first[RANKS], next[RACKS], taken = 0, could = 0;

	memset(first, -1, sizeof(first));
	for (int rack = 0; rack < RACKS; rack++) {
		int rank = rank_of(whole[rack], segment);

		could += whole[rack] / segment;
		if (whole[rack] < segment)
			continue;
		next[rack] = first[rank];
		first[rank] = rack; /* of racks that are alike the last */
	}
	if (could < segments)
		return false;
	for (int rank = 0; rank < RANKS; rank++)
		for (int rack = first[rank]; rack >= 0 && segments; rack = next[rack]) {
			int most = whole[rack] / segment, count = most < segments ? most : segments;

			take_in(left, without, rack, count * segment, out, &taken);
			segments -= count;
		}
	return true;
}

static bool place(const struct job *job, const int8_t *left, const bool *without, int *out)
{
	int whole[RACKS], n = job->trays, segment = job->segment, taken = 0;

	if (job->gpus < GPUS) {
		out[0] = rule == BERTH || rule == FIT ? part_of_berth(left, without, job->gpus)
						      : part_of_slurm(left, without, job->gpus);
		return out[0] >= 0;
	}
	if (rule == BLIND) {
		for (int i = 0; i < ALL && taken < n; i++)
			if (able(left, without, i, GPUS))
				out[taken++] = i;
		return taken == n;
	}
	count_whole(left, without, whole);
	if (!segment && n <= TRAYS)
		segment = n;
	if (!segment)
		return few_racks(left, without, n, whole, out);
	return by_segments(left, without, n / segment, segment, whole, out);
}

static int by_tray(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

/* Ranks follow Slurm's order of nodes, so a group is so many trays one after the other. */
static void look_at_groups(struct job *job)
{
	qsort(job->held, job->trays, sizeof(int), by_tray);
	job->spread = 1;
	job->crossing = job->groups = 0;
	for (int begin = 0; begin + job->group <= job->trays; begin += job->group) {
		int racks = 1;

		for (int i = begin + 1; i < begin + job->group; i++)
			racks += job->held[i] / TRAYS != job->held[i - 1] / TRAYS;
		job->groups++;
		job->crossing += racks > 1;
		if (racks > job->spread)
			job->spread = racks;
	}
}

static void give(struct job *job, int8_t *left)
{
	for (int i = 0; i < job->trays; i++)
		left[job->held[i]] += job->gpus < GPUS ? job->gpus : GPUS;
}

static void begin(struct job *job, const int *where, double now)
{
	job->held = malloc(job->trays * sizeof(int));
	memcpy(job->held, where, job->trays * sizeof(int));
	for (int i = 0; i < job->trays; i++)
		left_now[where[i]] -= job->gpus < GPUS ? job->gpus : GPUS;
	look_at_groups(job);
	if (job->first < 0)
		job->first = now;
	if (job->lost > 0) {
		restarts++;
		restart_seconds += now - job->lost;
		restart_hours += (now - job->lost) * job->gpus / 3600;
		job->lost = 0;
	}
	job->began = now;
	job->ends = now + job->left;
	running[n_running++] = (int)(job - jobs);
}

static void stop(int which, double now)
{
	struct job *job = &jobs[running[which]];

	give(job, left_now);
	free(job->held);
	job->left -= now - job->began;
	running[which] = running[--n_running];
}

static int by_limit(const void *a, const void *b)
{
	const struct job *one = &jobs[*(const int *)a], *other = &jobs[*(const int *)b];
	double x = one->began + one->limit, y = other->began + other->limit;

	return (x > y) - (x < y);
}

/* Keeps trays for the first job that waits; returns when it is to begin. */
static double reserve(const struct job *job)
{
	static int8_t later[ALL];
	static int order[ALL * GPUS], out[ALL];
	int low = 0, high = n_running;

	memcpy(order, running, n_running * sizeof(int));
	qsort(order, n_running, sizeof(int), by_limit);
	memset(kept, 0, sizeof(kept));
	while (low < high) {
		int middle = (low + high) / 2;

		memcpy(later, left_now, sizeof(later));
		for (int i = 0; i <= middle; i++)
			give(&jobs[order[i]], later);
		if (place(job, later, NULL, out))
			high = middle;
		else
			low = middle + 1;
	}
	if (low == n_running)
		return INFINITY; /* too many trays are down */
	memcpy(later, left_now, sizeof(later));
	for (int i = 0; i <= low; i++)
		give(&jobs[order[i]], later);
	place(job, later, NULL, out);
	for (int i = 0; i < job->trays; i++)
		kept[out[i]] = true;
	return jobs[order[low]].began + jobs[order[low]].limit;
}

static void pass(double now)
{
	static bool no[SHAPES], no_other[SHAPES];
	static int out[ALL];
	int still = 0;
	bool behind = false;
	double shadow = INFINITY;

	delayed = false;
	memset(no, 0, sizeof(no));
	memset(no_other, 0, sizeof(no_other));
	for (int i = 0; i < n_waiting; i++) {
		struct job *job = &jobs[waiting[i]];
		bool soon = !behind || now + job->limit <= shadow;
		bool *known = soon ? no : no_other;

		if (job->lost > 0 && now < job->lost + delay) {
			delayed = true;
			waiting[still++] = waiting[i];
			continue;
		}
		if (!no[job->shape] && !known[job->shape]) {
			if (place(job, left_now, soon ? NULL : kept, out)) {
				begin(job, out, now);
				continue;
			}
			known[job->shape] = true;
		}
		if (!behind) {
			shadow = reserve(job);
			behind = true;
		}
		waiting[still++] = waiting[i];
	}
	n_waiting = still;
}

static void wait_for_turn(int id)
{
	int i = n_waiting++;

	for (; i > 0 && waiting[i - 1] > id; i--)
		waiting[i] = waiting[i - 1];
	waiting[i] = id;
}

/* GPUs as one pool, and jobs that run on as many as there are: no scheduler keeps more in use. */
static double fluid(double from, double until)
{
	double busy = 0, healthy = 0;
	int next = 0, down = 0, *active = malloc(n_jobs * sizeof(int)), n_active = 0;

	for (double now = 0; now < until; now += PASS) {
		double pool, still = 0;
		int n = 0;

		down = 0;
		for (int i = 0; i < n_faults; i++)
			down += faults[i].at <= now && now < faults[i].until;
		while (next < n_jobs && jobs[next].at <= now) {
			/* As those of the other rules, which are looked at once a pass. */
			jobs[next].left = ceil(jobs[next].left / PASS) * PASS;
			active[n_active++] = next++;
		}
		pool = (double)(ALL - down) * GPUS;
		if (now >= from)
			healthy += pool * PASS;
		for (int i = 0; i < n_active; i++) {
			struct job *job = &jobs[active[i]];
			double part = pool < job->gpus ? pool : job->gpus,
			       used = part / job->gpus * PASS;

			if (used > job->left)
				used = job->left;
			pool -= part;
			job->left -= used;
			still += used * job->gpus;
			if (job->left > 0)
				active[n++] = active[i];
		}
		n_active = n;
		if (now >= from)
			busy += still;
	}
	free(active);
	return busy / healthy;
}

static void read_input(void)
{
	char line[256];

	jobs = calloc(1 << 20, sizeof(*jobs));
	faults = calloc(1 << 16, sizeof(*faults));
	while (fgets(line, sizeof(line), stdin)) {
		struct job *job = &jobs[n_jobs];
		double seconds;
		int rack, tray;

		if (sscanf(line, "down %lf %d %d %lf", &faults[n_faults].at, &rack, &tray,
			   &seconds) == 4) {
			faults[n_faults].tray = rack * TRAYS + tray;
			faults[n_faults].until = faults[n_faults].at + seconds;
			n_faults++;
			continue;
		}
		if (sscanf(line, "job %lf %d %lf %lf %d %d", &job->at, &job->gpus, &job->left,
			   &job->limit, &job->segment, &job->group) != 6)
			exit(2);
		job->trays = job->gpus < GPUS ? 1 : job->gpus / GPUS;
		if (job->group > job->trays)
			job->group = job->trays;
		job->first = -1;
		n_jobs++;
	}
}

int main(int argc, char **argv)
{
	double from, until, busy = 0, healthy = 0, broken = 0;
	int next = 0;
	bool *is_down;

	if (argc != 4 && argc != 5)
		return 2;
	for (rule = 0; rule < RULES && strcmp(argv[1], names[rule]); rule++)
		;
	from = atof(argv[2]);
	until = atof(argv[3]);
	delay = argc == 5 ? atof(argv[4]) : 0;
	read_input();
	if (rule == FLUID) {
		printf("busy %.6f\n", fluid(from, until));
		return 0;
	}
	is_down = calloc(n_faults + 1, 1);
	waiting = malloc((n_jobs + 1) * sizeof(int));
	running = malloc((n_jobs + 1) * sizeof(int));
	memset(left_now, GPUS, sizeof(left_now));
	for (double now = 0; now < until; now += PASS) {
		bool changed = false;
		int used = 0, well = ALL;

		for (int i = 0; i < n_running;) {
			struct job *job = &jobs[running[i]];

			if (job->ends > now) {
				i++;
				continue;
			}
			stop(i, job->ends);
			changed = true;
		}
		for (int i = 0; i < n_faults; i++) {
			bool down = faults[i].at <= now && now < faults[i].until;

			well -= down;
			if (down == is_down[i])
				continue;
			is_down[i] = down;
			changed = true;
			if (!down) {
				left_now[faults[i].tray] += DOWN;
				continue;
			}
			for (int j = 0; j < n_running;) {
				struct job *job = &jobs[running[j]];
				bool hit = false;

				for (int k = 0; k < job->trays; k++)
					hit |= job->held[k] == faults[i].tray;
				if (!hit) {
					j++;
					continue;
				}
				stop(j, now);
				job->lost = now;
				wait_for_turn((int)(job - jobs));
			}
			left_now[faults[i].tray] -= DOWN;
		}
		while (next < n_jobs && jobs[next].at <= now) {
			settle_segment(&jobs[next]);
			wait_for_turn(next++);
			changed = true;
		}
		if (changed || delayed)
			pass(now);
		if (now < from)
			continue;
		for (int i = 0; i < n_running; i++)
			used += jobs[running[i]].gpus;
		busy += used * PASS;
		healthy += (double)well * GPUS * PASS;
		for (int i = 0; i < ALL; i++)
			broken += left_now[i] > 0 && left_now[i] < GPUS;
	}
	for (int i = 0; i < n_jobs; i++)
		printf("%.0f %d %d %d\n", jobs[i].first < 0 ? -1 : jobs[i].first - jobs[i].at,
		       jobs[i].spread, jobs[i].crossing, jobs[i].groups);
	printf("busy %.6f %.1f %.0f %.1f %.1f\n", busy / healthy, broken * PASS / (until - from),
	       restarts, restart_seconds / fmax(1, restarts), restart_hours);
	return 0;
}
