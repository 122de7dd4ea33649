/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's own look-up: a name means the newest function that the caller's version knows. */
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void *here(const char *name)
{
	Dl_info own;
	void *self;

	if (!dladdr((void *)&here, &own))
		return NULL;
	self = dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	return self ? dlvsym(self, name, "FAKE_CUDA") : NULL;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
			     int *status)
{
	static const char *const forms[] = {"%s_v4", "%s_v3", "%s_v2", "%s"};
	/* Since when each form of cuCtxCreate and of cuGetProcAddress is meant. */
	static const int context_since[] = {12050, 11040, 3020, 99999};
	char name[128];

	driver_log("look up %s", symbol);
	*function = NULL;
	if (flags & GET_PROC_PER_THREAD_STREAM) {
		snprintf(name, sizeof(name), "%s_ptsz", symbol);
		*function = here(name);
	}
	for (size_t i = 0; !*function && i < sizeof(forms) / sizeof(*forms); i++) {
		if (!strcmp(symbol, "cuCtxCreate") && version < context_since[i])
			continue;
		if (!strcmp(symbol, "cuGetProcAddress") && i == 2 && version < 12000)
			continue;
		snprintf(name, sizeof(name), forms[i], symbol);
		*function = here(name);
	}
	if (status)
		*status = *function ? 0 : 1;
	return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress_v2_ptsz(const char *symbol, void **function, int version, uint64_t flags,
				  int *status)
{
	return cuGetProcAddress_v2(symbol, function, version,
				   flags ? flags : GET_PROC_PER_THREAD_STREAM, status);
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}
