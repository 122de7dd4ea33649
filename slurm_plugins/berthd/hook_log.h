/* SPDX-License-Identifier: Apache-2.0 */
/* One line for each call that asked berthd or would have. No Slurm in here. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

/* Returns a descriptor for hook_log_write, or -1 with errno set. */
int hook_log_open(const char *path);
/* Threads and other processes may write to the same file: each line is one append. */
void hook_log_write(int fd, uint64_t spent_us, const char *outcome, uid_t uid);
