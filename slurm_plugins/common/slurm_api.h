/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the plugins use of Slurm beyond its installed headers: a few functions that libslurm exports
 * under the same names and prototypes in every supported release.
 */
#pragma once

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/slurm_version.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(24, 11, 0)
#error                                                                                             \
    "Berth needs Slurm 24.11 or later: install the headers of a supported Slurm (24.11 to 26.05)."
#endif

/*
 * Weak: a release that has a symbol no more loads the plugin all the same, and the plugin finds its
 * address to be NULL. Without that slurmctld would end (common/needed.h).
 */
#define WEAK __attribute__((weak))

extern void slurm_error(const char *format, ...) __attribute__((format(printf, 1, 2))) WEAK;
extern void slurm_info(const char *format, ...) __attribute__((format(printf, 1, 2))) WEAK;
extern char *slurm_xstrdup(const char *s) WEAK;
extern void slurm_xfree(void **item) WEAK;
extern void *slurm_xrecalloc(void **item, size_t count, size_t size, bool clear, bool try,
			     const char *file, int line, const char *function) WEAK;
#pragma weak slurm_free_job_info_msg
#pragma weak slurm_kill_job2
#pragma weak slurm_load_job

/* slurm_conf_t is public; the one in use is exported by slurmctld's and the commands' library. */
extern slurm_conf_t slurm_conf WEAK;

/* Slurm frees these fields itself, so they must come from its own allocator. */
static inline void set_string(char **field, const char *value)
{
	slurm_xfree((void **)field);
	if (value)
		*field = slurm_xstrdup(value);
}
