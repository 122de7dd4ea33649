/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What berth-prolog decided for a job reaches each of its tasks here: in batch scripts, steps and
 * salloc's shell alike. A fault of ours is one sentence; only a job that asked for a share and has
 * none is stopped, by ending its task: no return value here could drain a node.
 */
#include "spank/spank_node.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/messages.h"
#include "common/slurm_api.h"
#include "config/options.h"
#include "node/devices.h"
#include "node/mps_listens.h"
#include "node/share_file.h"
#include "spank/spank_injected.h"

#define MPS_PREFIX "CUDA_MPS_"
/* Where MPS's pipes of shared GPUs are; see prolog_epilog/. */
#define MPS_PIPES "CUDA_MPS_PIPE_DIRECTORY"
#define BERTH_PIPES "/run/berth/"

/* The arguments of our line in plugstack.conf. */
struct settings {
	const char *folder, *python;
	enum { CHECK_OFF, CHECK_WARN, CHECK_STOP } devices;
};

/* Found as root and acted on as the user: one process, two hooks. */
static struct {
	uint32_t job;
	int task;
	enum share_result result;
	struct settings settings;
	struct share_file file;
	char refused[SHARE_ERROR_MAX];
	bool stop;
	char sentence[MESSAGE_MAX + SHARE_ERROR_MAX];
} found = {
    .result = SHARE_NONE,
    .settings = {.folder = SHARE_FOLDER, .python = "/opt/berth/bin/python", .devices = CHECK_WARN},
};

static void read_settings(int argc, char **argv)
{
	static const char *const words[] = {"off", "warn", "stop"};
	struct settings *settings = &found.settings;

	for (int i = 0; i < argc; i++) {
		bool folder = !strncmp(argv[i], "shares=/", 8);
		bool python = !strncmp(argv[i], "preflight=/", 11);
		bool known = folder || python;

		if (folder)
			settings->folder = argv[i] + strlen("shares=");
		if (python)
			settings->python = argv[i] + strlen("preflight=");
		for (int word = CHECK_OFF; word <= CHECK_STOP; word++) {
			if (strncmp(argv[i], "devices=", 8) || strcmp(argv[i] + 8, words[word]))
				continue;
			settings->devices = word;
			known = true;
		}
		if (!known && found.task == 0)
			slurm_error(
			    "berth: plugstack.conf: %s is not known; right are "
			    "devices=off|warn|stop, shares=/FOLDER and preflight=/PYTHON" BERTH_ID(
				845),
			    argv[i]);
	}
}

/* Slurm gave this task a part of a GPU, and its user asked for that. */
static bool packed(spank_t spank)
{
	char shards[16];
	char *share = NULL;
	struct spank_option option = {
	    .name = OPTION_SHARE, .arginfo = "PCT", .has_arg = 1, .val = 0};

	return spank_getenv(spank, SHARDS_HERE, shards, sizeof(shards)) == ESPANK_SUCCESS &&
	       spank_option_getopt(spank, &option, &share) == ESPANK_SUCCESS;
}

/*
 * job_submit says that a seat was asked for: the tier alone says nothing, Slurm's books have no GPU
 * for a guest, and where devices are not constrained any job opens all of them.
 */
static bool guest(spank_t spank)
{
	static const char opportunistic[] = "opportunistic";
	char value[16];
	char *tier = NULL;
	struct spank_option option = {
	    .name = OPTION_TIER, .arginfo = "TIER", .has_arg = 1, .val = 0};

	return spank_getenv(spank, SEAT_ASKED, value, sizeof(value)) == ESPANK_SUCCESS &&
	       spank_getenv(spank, "SLURM_GPUS_ON_NODE", value, sizeof(value)) != ESPANK_SUCCESS &&
	       spank_option_getopt(spank, &option, &tier) == ESPANK_SUCCESS && tier &&
	       !strncmp(tier, opportunistic, strlen(opportunistic));
}

static bool needs_share_file(spank_t spank)
{
	return packed(spank) || guest(spank);
}

/* The batch script and salloc's shell can open all GPUs of the job; a step may have a part. */
static bool has_all_gpus(spank_t spank)
{
	uint32_t step;

	return spank_get_item(spank, S_JOB_STEPID, &step) == ESPANK_SUCCESS &&
	       (step == SLURM_BATCH_SCRIPT || step == SLURM_INTERACTIVE_STEP);
}

static void check_devices(spank_t spank)
{
	unsigned int minor = 0;
	enum devices_verdict verdict;

	if (found.settings.devices == CHECK_OFF || !found.file.minor_count)
		return;
	verdict = devices_check(found.file.minors, found.file.minor_count, has_all_gpus(spank),
				device_probe, &minor);
	if (verdict == DEVICES_RIGHT)
		return;
	found.stop = found.settings.devices == CHECK_STOP;
	snprintf(found.sentence, sizeof(found.sentence),
		 verdict == DEVICES_FOREIGN
		     ? "job %u can open /dev/nvidia%u, which is not one of its GPUs: tell your "
		       "administrator to check ConstrainDevices in cgroup.conf"
		     : "job %u cannot open /dev/nvidia%u, which is one of its GPUs: tell your "
		       "administrator to compare gres.conf with `berth topo export`",
		 found.job, minor);
}

/* What keeps user code from running, if anything does. */
static void judge(spank_t spank)
{
	const char *problem = NULL;

	if (found.result == SHARE_READ && found.file.degraded)
		problem =
		    *found.file.why ? found.file.why : "the GPU could not be shared on this node";
	else if (found.result == SHARE_NONE && needs_share_file(spank))
		problem = "this node has no share file for it: tell your administrator to check "
			  "that berth-prolog is slurm.conf's Prolog";
	else if (found.result == SHARE_BAD)
		problem = found.refused;
	if (!problem)
		return;
	found.stop = found.result != SHARE_BAD || needs_share_file(spank);
	snprintf(found.sentence, sizeof(found.sentence), "job %u%s: %s%s", found.job,
		 found.stop ? " is stopped before it starts" : "",
		 found.result == SHARE_BAD ? "its share file is not used: " : "", problem);
}

/* Where the share file sends the job's programs; NULL where MPS has no part in it. */
static const char *pipe_folder(void)
{
	for (size_t i = 0; i < found.file.variable_count; i++)
		if (!strcmp(found.file.variables[i].name, MPS_PIPES))
			return found.file.variables[i].value;
	return NULL;
}

/*
 * The Prolog set MPS up, and that may be a while ago. A program that finds no daemon gets the GPU
 * all the same, without any limit; so its task does not start.
 */
static void check_mps(void)
{
	static const char why[] = "MPS is gone from its GPU on this node";
	const char *folder = pipe_folder();

	if (!folder || mps_listens(folder))
		return;
	share_file_degrade(found.settings.folder, found.job, geteuid(), why);
	found.stop = true;
	snprintf(found.sentence, sizeof(found.sentence),
		 "job %u is stopped before it starts: %s; berthd moves the job", found.job, why);
}

void spank_node_inspect(spank_t spank, int argc, char **argv)
{
	uid_t uid;

	if (spank_get_item(spank, S_JOB_ID, &found.job) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_UID, &uid) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_TASK_ID, &found.task) != ESPANK_SUCCESS)
		return;
	read_settings(argc, argv);
	found.result = share_file_load(found.settings.folder, found.job, geteuid(), &found.file,
				       found.refused);
	if (found.result == SHARE_READ && found.file.uid != uid) {
		found.result = SHARE_BAD;
		snprintf(found.refused, sizeof(found.refused), "it is another user's");
	}
	judge(spank);
	if (found.result == SHARE_READ && !found.stop)
		check_mps();
	/* One task on a node is enough to find it out, but all of them have to be stopped. */
	if (found.result == SHARE_READ && !found.stop &&
	    (found.task == 0 || found.settings.devices == CHECK_STOP))
		check_devices(spank);
}

/* Take away every variable that begins so. Removing one moves the others, hence from the start. */
static void unset_all(spank_t spank, const char *prefix)
{
	char **env;
	bool more = true;

	while (more && spank_get_item(spank, S_JOB_ENV, &env) == ESPANK_SUCCESS) {
		more = false;
		for (char **entry = env; entry && *entry && !more; entry++) {
			char name[WIRE_KEY_MAX + 1];
			size_t len = strcspn(*entry, "=");

			/* Without a value it is no variable, and could not be taken away. */
			if (strncmp(*entry, prefix, strlen(prefix)) || !(*entry)[len] ||
			    len >= sizeof(name))
				continue;
			memcpy(name, *entry, len);
			name[len] = '\0';
			more = spank_unsetenv(spank, name) == ESPANK_SUCCESS;
		}
	}
}

/* A job that was submitted inside a packed job inherits a pipe that is not its own. */
static void drop_strange_pipes(spank_t spank)
{
	char pipes[PATH_BYTES];

	if (spank_getenv(spank, MPS_PIPES, pipes, sizeof(pipes)) == ESPANK_SUCCESS &&
	    !strncmp(pipes, BERTH_PIPES, strlen(BERTH_PIPES)))
		unset_all(spank, MPS_PREFIX);
}

static void set_environment(spank_t spank)
{
	bool sets_mps = false;

	for (size_t i = 0; i < found.file.variable_count; i++)
		sets_mps |= !strncmp(found.file.variables[i].name, MPS_PREFIX, strlen(MPS_PREFIX));
	/* Whatever the user's shell said of MPS was meant for another daemon. */
	if (sets_mps)
		unset_all(spank, MPS_PREFIX);
	for (size_t i = 0; i < found.file.variable_count; i++) {
		const struct share_variable *variable = &found.file.variables[i];

		if (variable->prepended)
			continue;
		if (variable->value)
			spank_setenv(spank, variable->name, variable->value, 1);
		else
			spank_unsetenv(spank, variable->name);
	}
}

void spank_node_prepare(spank_t spank)
{
	/* One voice for all tasks of a node. */
	if (*found.sentence && found.task == 0)
		slurm_error("berth: %s" BERTH_ID(846), found.sentence);
	if (found.stop)
		_exit(EXIT_FAILURE);
	drop_strange_pipes(spank);
	spank_injected_forget(spank);
	if (found.result == SHARE_READ) {
		set_environment(spank);
		spank_injected_give(spank, &found.file);
	}
}

/*
 * A pre-flight's script runs under Berth's runner, with the user's own rights. If the runner cannot
 * start here, as in a container, the pre-flight ends at once: its job then runs as if it had none.
 */
void spank_node_preflight(spank_t spank)
{
	char how[32];
	/* Berth's own Python, whatever the job's environment says to Pythons (-I). */
	const char *words[] = {
	    found.settings.python, "-I", "-m", "prolog_epilog.preflight.runner", how, "--"};
	uint32_t step;

	if (spank_get_item(spank, S_JOB_STEPID, &step) == ESPANK_SUCCESS &&
	    step == SLURM_BATCH_SCRIPT &&
	    spank_getenv(spank, HANDED_DOWN PREFLIGHT_SECONDS, how, sizeof(how)) ==
		ESPANK_SUCCESS &&
	    spank_prepend_task_argv(spank, sizeof(words) / sizeof(words[0]), words) !=
		ESPANK_SUCCESS)
		slurm_error("berth: this pre-flight runs without Berth's runner, up to Slurm's "
			    "limit" BERTH_ID(844));
}
