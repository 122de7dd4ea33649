/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the driver, past our own hooks. */
#pragma once

typedef void *(*dlsym_t)(void *, const char *);

/* The C library's dlsym, which our own hides. */
dlsym_t real_dlsym(void);

/* Any function of the driver that is not hooked. */
void *driver_symbol(const char *name);
