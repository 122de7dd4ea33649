/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that is linked with the driver: launcher COUNT [THREADS] prints how many nanoseconds
 * of processor time a launch of an empty kernel takes.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "driver/cuda_abi.h"

CUresult cuInit(u32 flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuModuleGetFunction(CUfunction *function, void *module, const char *name);

static CUcontext context;
static CUfunction function;
static long count;

static void *launch(void *nothing)
{
	cuCtxSetCurrent(context);
	for (long i = 0; i < count; i++)
		if (cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL))
			abort();
	return nothing;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(int argc, char **argv)
{
	int threads = argc > 2 ? atoi(argv[2]) : 1;
	pthread_t ids[64];
	double began;

	count = argc > 1 ? atol(argv[1]) / threads : 1000;
	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) ||
	    cuModuleGetFunction(&function, NULL, "work_0"))
		return 1;
	began = now();
	for (int i = 0; i < threads; i++)
		pthread_create(&ids[i], NULL, launch, NULL);
	for (int i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	printf("%.3f\n", (now() - began) / (double)(count * threads));
	return 0;
}
