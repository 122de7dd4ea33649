/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/driver.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>

dlsym_t real_dlsym(void)
{
	static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
	static dlsym_t _Atomic found;
	dlsym_t real = atomic_load_explicit(&found, memory_order_relaxed);

	for (size_t i = 0; !real && i < sizeof(versions) / sizeof(*versions); i++)
		real = (dlsym_t)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
	atomic_store_explicit(&found, real, memory_order_relaxed);
	return real;
}

void *driver_symbol(const char *name)
{
	static void *_Atomic driver;

	if (!driver)
		atomic_store(&driver, dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL));
	return driver ? real_dlsym()(driver, name) : NULL;
}
