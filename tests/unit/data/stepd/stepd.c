/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What slurmstepd does around the plugin's hooks on a node: a task begins, and its environment is
 * printed where the user's program would run.
 *
 *   stepd JOB UID STEP TASK FLAG DEVICES [PLUGSTACK ARGUMENTS]
 *
 * FLAG is the value of --gpu-share, a number, or of --gpu-tier, or empty. DEVICES has a letter for each /dev/nvidiaN: o opens,
 * d is denied by the cgroup, - does not exist.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "spank/spank_node.h"

static char **given;

static uint32_t number(int index)
{
	return (uint32_t)strtoul(given[index], NULL, 10);
}

int access(const char *path, int mode)
{
	unsigned int minor;
	char state;

	if (sscanf(path, "/dev/nvidia%u", &minor) != 1)
		return faccessat(AT_FDCWD, path, mode, 0);
	state = minor < strlen(given[6]) ? given[6][minor] : '-';
	errno = state == 'd' ? EPERM : ENOENT;
	return state == 'o' ? 0 : -1;
}

spank_err_t spank_get_item(spank_t spank, enum spank_item item, ...)
{
	va_list arguments;

	(void)spank;
	va_start(arguments, item);
	switch (item) {
	case S_JOB_ID:
		*va_arg(arguments, uint32_t *) = number(1);
		break;
	case S_JOB_UID:
		*va_arg(arguments, uid_t *) = number(2);
		break;
	case S_JOB_STEPID:
		*va_arg(arguments, uint32_t *) = number(3);
		break;
	case S_TASK_ID:
		*va_arg(arguments, int *) = (int)number(4);
		break;
	case S_JOB_ENV:
		*va_arg(arguments, char ***) = environ;
		break;
	}
	va_end(arguments);
	return ESPANK_SUCCESS;
}

spank_err_t spank_getenv(spank_t spank, const char *name, char *value, int size)
{
	const char *found = getenv(name);

	(void)spank;
	if (!found)
		return ESPANK_ENV_NOEXIST;
	return snprintf(value, (size_t)size, "%s", found) < size ? ESPANK_SUCCESS : ESPANK_ERROR;
}

spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
	(void)spank;
	return setenv(name, value, overwrite);
}

spank_err_t spank_unsetenv(spank_t spank, const char *name)
{
	(void)spank;
	return unsetenv(name);
}

/* What would be started stands before the environment. */
spank_err_t spank_prepend_task_argv(spank_t spank, int argc, const char *argv[])
{
	(void)spank;
	printf("words=");
	for (int i = 0; i < argc; i++)
		printf("%s ", argv[i]);
	puts("SCRIPT");
	return ESPANK_SUCCESS;
}

spank_err_t spank_option_getopt(spank_t spank, struct spank_option *option, char **value)
{
	const char *flag = isdigit((unsigned char)*given[5]) ? "gpu-share" : "gpu-tier";

	(void)spank;
	if (strcmp(option->name, flag) != 0 || !*given[5])
		return ESPANK_ERROR;
	*value = given[5];
	return ESPANK_SUCCESS;
}

void slurm_error(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
}

int main(int argc, char **argv)
{
	if (argc < 7)
		return 2;
	given = argv;
	spank_node_inspect(NULL, argc - 7, argv + 7);
	spank_node_prepare(NULL);
	spank_node_preflight(NULL);
	for (char **entry = environ; *entry; entry++)
		puts(*entry);
	return 0;
}
