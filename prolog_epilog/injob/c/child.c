/* SPDX-License-Identifier: Apache-2.0 */
/* A child of fork() begins anew. */
#include <pthread.h>
#include <stddef.h>

#include "gate.h"
#include "memory/books.h"
#include "memory/graphs.h"
#include "process.h"

/* Nothing that the parent held is the child's: not its place, its memory nor its helper thread. */
static void in_child(void)
{
	words_forget(&process.words);
	for (int i = 0; i < DEVICES_MAX; i++)
		atomic_store(&process.by_device[i], NULL);
	books_forget();
	graphs_forget();
	gate_forget();
	leave_forget();
	atomic_store(&process.leaving, false);
	atomic_store(&process.state, PROCESS_NEW);
}

__attribute__((constructor)) static void at_load(void)
{
	pthread_atfork(NULL, NULL, in_child);
}
