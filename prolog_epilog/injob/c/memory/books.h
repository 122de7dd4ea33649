/* SPDX-License-Identifier: Apache-2.0 */
/* How much GPU memory each process holds: a quota for all processes of a job together. No locks. */
#pragma once

#include "process.h"

enum kind { POINTER = 1, HANDLE, MAPPING, ARRAY, MIPMAPPED };

struct holding {
	_Atomic uint64_t key;
	uint64_t size;
	_Atomic uint64_t uses; /* HANDLE: how many hold it; MAPPING: the handle that is mapped */
	CUcontext context;     /* goes with it; NULL: with the primary one, or with none */
	int device;
	enum kind kind;
};

/* Takes `size` bytes of the device's quota; false: it would not fit. */
bool books_reserve(CUdevice device, uint64_t size);
void books_release(CUdevice device, uint64_t size);
/* Books what the driver has given already, beyond the quota too. */
void books_add(CUdevice device, uint64_t size);
/* Notes what a reservation became; false: there is no room to note it. */
bool books_note(enum kind kind, uint64_t name, CUdevice device, uint64_t size, uint64_t uses);
/* Strikes it out, so that the driver may give the same name again; false: it is not ours. */
bool books_strike(enum kind kind, uint64_t name, struct holding *struck);
struct holding *books_find(enum kind kind, uint64_t name);
/* A context took its memory with it; `context` NULL: the primary one of the device. */
void books_context_gone(CUcontext context, CUdevice device);
/* Bytes that may still be had of the device's quota; false: there is none. */
bool books_left(CUdevice device, uint64_t *left, uint64_t *quota);
/* In a child after fork: what the parent holds is the parent's. */
void books_forget(void);
