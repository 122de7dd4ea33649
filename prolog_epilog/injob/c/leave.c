/* SPDX-License-Identifier: Apache-2.0 */
/*
 * On SIGTERM or SIGINT no launch starts any more, the GPU finishes what it has, the contexts are
 * given back, and the process dies of the signal, as its parent expects. A program with a handler
 * of its own keeps it. Under MPS a client that is killed with work in flight can hurt the others.
 */
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "driver/driver.h"
#include "driver/hooks.h"
#include "memory/books.h"

/* Then the process is killed, finished or not. */
#define DEADLINE_S 5
#define CONTEXTS_MAX 64

static CUcontext _Atomic contexts[CONTEXTS_MAX];
static sem_t signalled;
static volatile sig_atomic_t came;
static pid_t owner;
static const int signals[] = {SIGTERM, SIGINT};
static bool ours[2];

void context_made(CUcontext context)
{
	for (int i = 0; i < CONTEXTS_MAX; i++) {
		CUcontext none = NULL;

		if (atomic_compare_exchange_strong(&contexts[i], &none, context))
			return;
	}
}

void context_gone(CUcontext context)
{
	for (int i = 0; i < CONTEXTS_MAX; i++) {
		CUcontext same = context;

		if (atomic_compare_exchange_strong(&contexts[i], &same, NULL))
			return;
	}
}

CUcontext context_current_made(void)
{
	CUresult (*ask)(CUcontext *) = (CUresult(*)(CUcontext *))driver_symbol("cuCtxGetCurrent");
	CUcontext current = NULL;

	if (!ask || ask(&current) || !current)
		return NULL;
	for (int i = 0; i < CONTEXTS_MAX; i++)
		if (atomic_load(&contexts[i]) == current)
			return current;
	return NULL;
}

static void kill_at_deadline(void)
{
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
	struct itimerspec when = {.it_value.tv_sec = DEADLINE_S};
	timer_t timer;

	if (!timer_create(CLOCK_MONOTONIC, &event, &timer))
		timer_settime(timer, 0, &when, NULL);
}

static void finish(CUcontext context)
{
	CUresult (*push)(CUcontext) = (CUresult(*)(CUcontext))driver_symbol("cuCtxPushCurrent_v2");
	CUresult (*wait)(void) = (CUresult(*)(void))driver_symbol("cuCtxSynchronize");
	CUresult (*pop)(CUcontext *) =
	    (CUresult(*)(CUcontext *))driver_symbol("cuCtxPopCurrent_v2");

	if (push && wait && pop && !push(context)) {
		wait();
		pop(&context);
	}
}

static void give_back_primary(CUdevice device)
{
	CUresult (*state)(CUdevice, u32 *, int *) =
	    (CUresult(*)(CUdevice, u32 *, int *))driver_symbol("cuDevicePrimaryCtxGetState");
	CUresult (*retain)(CUcontext *, CUdevice) =
	    (CUresult(*)(CUcontext *, CUdevice))driver_symbol("cuDevicePrimaryCtxRetain");
	CUcontext context;
	u32 flags;
	int active;

	if (!state || !retain || state(device, &flags, &active) || !active ||
	    retain(&context, device))
		return;
	finish(context);
	if (REAL(cuDevicePrimaryCtxReset_v2))
		REAL(cuDevicePrimaryCtxReset_v2)(device);
}

static void give_back_everything(void)
{
	CUresult (*count)(int *) = (CUresult(*)(int *))driver_symbol("cuDeviceGetCount");
	int devices = 0;

	for (int i = 0; i < CONTEXTS_MAX; i++) {
		CUcontext context = atomic_load(&contexts[i]);

		if (context && REAL(cuCtxDestroy_v2)) {
			finish(context);
			REAL(cuCtxDestroy_v2)(context);
		}
	}
	if (count && !count(&devices))
		for (int device = 0; device < devices; device++)
			give_back_primary(device);
}

static void *helper(void *nothing)
{
	while (sem_wait(&signalled))
		;
	atomic_store(&process.leaving, true);
	kill_at_deadline();
	give_back_everything();
	signal(came, SIG_DFL);
	kill(getpid(), came);
	return nothing;
}

static void on_signal(int number)
{
	/* A vfork child shares our memory, but it has nothing to give back. */
	if (getpid() != owner) {
		signal(number, SIG_DFL);
		kill(getpid(), number);
		return;
	}
	came = number;
	sem_post(&signalled);
}

void leave_on_signals(void)
{
	struct sigaction now, mine = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	pthread_attr_t attributes;
	sigset_t all, before;
	pthread_t thread;
	int failed;

	owner = getpid();
	sem_init(&signalled, 0, 0);
	sigfillset(&all);
	/* The program's signals are for the program's threads. */
	pthread_sigmask(SIG_BLOCK, &all, &before);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	failed = pthread_create(&thread, &attributes, helper, NULL);
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	for (size_t i = 0; !failed && i < sizeof(signals) / sizeof(*signals); i++)
		if (!sigaction(signals[i], NULL, &now) && now.sa_handler == SIG_DFL &&
		    !sigaction(signals[i], &mine, NULL))
			ours[i] = true;
}

void leave_forget(void)
{
	for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++) {
		struct sigaction now;

		if (ours[i] && !sigaction(signals[i], NULL, &now) && now.sa_handler == on_signal)
			signal(signals[i], SIG_DFL);
		ours[i] = false;
	}
	memset((void *)contexts, 0, sizeof(contexts));
}

static CUresult made(CUresult result, CUcontext *context)
{
	if (!result)
		context_made(*context);
	return result;
}

CUresult cuCtxCreate_v2(CUcontext *context, u32 flags, CUdevice device)
{
	__typeof__(&cuCtxCreate_v2) real = REAL(cuCtxCreate_v2);

	return real ? made(real(context, flags, device), context) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, u32 flags, CUdevice device)
{
	__typeof__(&cuCtxCreate_v3) real = REAL(cuCtxCreate_v3);

	return real ? made(real(context, affinity, count, flags, device), context)
		    : CUDA_ERROR_NOT_FOUND;
}

CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, u32 flags, CUdevice device)
{
	__typeof__(&cuCtxCreate_v4) real = REAL(cuCtxCreate_v4);

	return real ? made(real(context, parameters, flags, device), context)
		    : CUDA_ERROR_NOT_FOUND;
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
	__typeof__(&cuCtxDestroy_v2) real = REAL(cuCtxDestroy_v2);
	CUresult result = real ? real(context) : CUDA_ERROR_NOT_FOUND;

	if (!result) {
		context_gone(context);
		books_context_gone(context, -1);
	}
	return result;
}

static CUresult primary_gone(CUresult result, CUdevice device)
{
	CUresult (*state)(CUdevice, u32 *, int *) =
	    (CUresult(*)(CUdevice, u32 *, int *))driver_symbol("cuDevicePrimaryCtxGetState");
	u32 flags;
	int active = 1;

	if (!result && state && !state(device, &flags, &active) && !active)
		books_context_gone(NULL, device);
	return result;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	__typeof__(&cuDevicePrimaryCtxReset_v2) real = REAL(cuDevicePrimaryCtxReset_v2);

	return real ? primary_gone(real(device), device) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	__typeof__(&cuDevicePrimaryCtxRelease_v2) real = REAL(cuDevicePrimaryCtxRelease_v2);

	return real ? primary_gone(real(device), device) : CUDA_ERROR_NOT_FOUND;
}
