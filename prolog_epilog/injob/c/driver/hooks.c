/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a program comes to a driver function, and how we come between: by linking (our names are
 * found first), by dlsym, and by the driver's own cuGetProcAddress. Names that we do not know pass
 * through untouched; those that launch or allocate are counted, so that the guard learns of a gap.
 */
#include "driver/hooks.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "driver/driver.h"
#include "process.h"

struct entry {
	const char *name, *base;
	void *ours;
	int since, per_thread;
};

static const struct entry entries[HOOK_COUNT] = {
#define X(name, base, since, per_thread) {#name, base, (void *)(name), since, per_thread},
    HOOKS(X)
#undef X
};
static void *_Atomic reals[HOOK_COUNT];

/* What a new CUDA may add to: whatever begins so does work or takes memory. */
static const char *const governed[] = {
    "cuLaunchKernel", "cuLaunchCoop",  "cuGraphLaunch",	  "cuGraphAddMemAlloc",	    "cuMemAlloc",
    "cuMemCreate",    "cuArrayCreate", "cuArray3DCreate", "cuMipmappedArrayCreate", "cuCtxCreate",
};
/* They begin so, but take no memory of the GPU. */
static const char *const harmless[] = {"cuMemAllocHost", "cuMemAllocHost_v2"};

void *hook_real(enum hook hook)
{
	void *real = atomic_load_explicit(&reals[hook], memory_order_relaxed);

	if (!likely(real)) {
		real = driver_symbol(entries[hook].name);
		atomic_store(&reals[hook], real);
	}
	return real;
}

static const struct entry *named(const char *name)
{
	for (size_t i = 0; i < HOOK_COUNT; i++)
		if (!strcmp(entries[i].name, name))
			return &entries[i];
	return NULL;
}

/* What cuGetProcAddress means by a name: the newest that the caller's version knows. */
static const struct entry *asked_for(const char *base, int version, int per_thread)
{
	const struct entry *best = NULL;

	for (const struct entry *entry = entries; entry < entries + HOOK_COUNT; entry++) {
		if (strcmp(entry->base, base) || entry->since > version ||
		    entry->per_thread > per_thread)
			continue;
		if (!best || entry->per_thread > best->per_thread ||
		    (entry->per_thread == best->per_thread && entry->since > best->since))
			best = entry;
	}
	return best ? best : named(base);
}

static void count_if_governed(const char *name)
{
	for (size_t i = 0; i < sizeof(harmless) / sizeof(*harmless); i++)
		if (!strcmp(name, harmless[i]))
			return;
	for (size_t i = 0; i < sizeof(governed) / sizeof(*governed); i++)
		if (!strncmp(name, governed[i], strlen(governed[i]))) {
			process_open();
			atomic_fetch_add(&process.own->unknown, 1);
			return;
		}
}

/* Puts ours in the place of the driver's, which we call in our turn. */
static void *come_between(const struct entry *entry, void *real)
{
	void *none = NULL;

	atomic_compare_exchange_strong(&reals[entry - entries], &none, real);
	return entry->ours;
}

/*
 * Where the loaded objects are searched in their order, each stands where it belongs already, and
 * to come between once more would lead two libraries like ours back to each other for ever.
 */
static bool in_load_order(void *handle)
{
	static void *_Atomic program;

	if (!program)
		atomic_store(&program, dlopen(NULL, RTLD_LAZY | RTLD_NOLOAD));
	return handle == RTLD_DEFAULT || handle == program;
}

EXPORT void *dlsym(void *handle, const char *name)
{
	dlsym_t real = real_dlsym();
	const struct entry *entry;
	void *found;

	/* The last call is a jump: for RTLD_NEXT the C library looks at who called. */
	if (handle == RTLD_NEXT || name[0] != 'c' || name[1] != 'u' || name[2] < 'A' ||
	    name[2] > 'Z')
		return real(handle, name);
	if (in_load_order(handle))
		return real(handle, name);
	found = real(handle, name);
	entry = found ? named(name) : NULL;
	if (entry)
		return found == entry->ours ? found : come_between(entry, found);
	if (found)
		count_if_governed(name);
	return found;
}

static CUresult between(CUresult result, const char *symbol, void **function, int version,
			int per_thread)
{
	const struct entry *entry;

	if (result || !symbol || !function || !*function)
		return result;
	entry = asked_for(symbol, version, per_thread);
	if (entry)
		*function = come_between(entry, *function);
	else
		count_if_governed(symbol);
	return result;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
	__typeof__(&cuGetProcAddress) real = REAL(cuGetProcAddress);

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	return between(real(symbol, function, version, flags), symbol, function, version,
		       !!(flags & GET_PROC_PER_THREAD_STREAM));
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
			     int *status)
{
	__typeof__(&cuGetProcAddress_v2) real = REAL(cuGetProcAddress_v2);

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	return between(real(symbol, function, version, flags, status), symbol, function, version,
		       !!(flags & GET_PROC_PER_THREAD_STREAM));
}

CUresult cuGetProcAddress_v2_ptsz(const char *symbol, void **function, int version, uint64_t flags,
				  int *status)
{
	__typeof__(&cuGetProcAddress_v2_ptsz) real = REAL(cuGetProcAddress_v2_ptsz);

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	/* Unless told otherwise, this variant means a default stream per thread. */
	return between(real(symbol, function, version, flags, status), symbol, function, version,
		       !flags || flags & GET_PROC_PER_THREAD_STREAM);
}
