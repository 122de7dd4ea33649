/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 for NVIDIA's control program of MPS from driver 580 on, which asks the driver's
 * own library whether there is a GPU before it starts. This one sees the GPUs of
 * CUDA_VISIBLE_DEVICES: H100s, as far as the program asks.
 *
 * The program asks by a table of functions without names. Which entry is asked for what was found
 * out by looking at what the control programs of drivers 580 and 595 give and take; an entry that
 * they do not use here is empty.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NO_DEVICE = 100, INVALID_RESOURCE = 914, ENTRIES = 24 };
enum {
	SMS = 132,
	SMS_IN_TPC = 2,
	SMS_IN_CHUNK = 8,
	CAPABILITY = 90,
	ID_BYTES = 36,
	MOST_TPCS = 128
};

/* As CUdevResource: what a partition is cut from. */
struct resource {
	unsigned type;
	unsigned internal[23];
	unsigned sm_count;
	unsigned rest[11];
};
_Static_assert(sizeof(struct resource) == 144, "CUdevResource");

struct device {
	unsigned ordinal;
	unsigned pci[4];
	unsigned capability;
	unsigned char uuid[16];
	char name[132];
};
_Static_assert(sizeof(struct device) == 172, "what the program keeps of a device");

struct sizes {
	unsigned before[4];
	unsigned sms_in_tpc;
};

/* The start of what the program keeps of a partition. */
struct partition {
	unsigned ordinal;
	char id[ID_BYTES];
};

static unsigned count(void)
{
	const char *seen = getenv("CUDA_VISIBLE_DEVICES");
	unsigned found = seen && *seen;

	for (; seen && *seen; seen++)
		found += *seen == ',';
	return found;
}

static int start(void)
{
	return count() ? 0 : NO_DEVICE;
}

static int has_singletons(unsigned char *answer)
{
	*answer = 0;
	return 0;
}

static int devices(unsigned *answer)
{
	*answer = count();
	return 0;
}

static int device(unsigned ordinal, struct device *answer)
{
	const char *seen = getenv("CUDA_VISIBLE_DEVICES");

	for (unsigned i = 0; seen && i < ordinal; i++) {
		seen = strchr(seen, ',');
		seen = seen ? seen + 1 : NULL;
	}
	if (!seen)
		return NO_DEVICE;
	memset(answer, 0, sizeof(*answer));
	answer->ordinal = ordinal;
	answer->capability = CAPABILITY;
	snprintf(answer->name, sizeof(answer->name), "NVIDIA H100");
	seen += strcspn(seen, "-");
	for (size_t i = 0; i < sizeof(answer->uuid); i++) {
		seen += strspn(seen, "-");
		if (sscanf(seen, "%2hhx", &answer->uuid[i]) == 1)
			seen += 2;
	}
	return 0;
}

static int sizes(unsigned ordinal, struct sizes *answer)
{
	(void)ordinal;
	memset(answer, 0, sizeof(*answer));
	answer->sms_in_tpc = SMS_IN_TPC;
	return 0;
}

static int resource(unsigned ordinal, struct resource *answer)
{
	(void)ordinal;
	memset(answer, 0, sizeof(*answer));
	answer->type = 1;
	answer->sm_count = SMS;
	return 0;
}

static int ordinal_of(const char *uuid, unsigned *answer)
{
	const char *seen = getenv("CUDA_VISIBLE_DEVICES"),
		   *place = seen ? strstr(seen, uuid) : NULL;

	if (!place)
		return NO_DEVICE;
	*answer = 0;
	for (; seen < place; seen++)
		*answer += *seen == ',';
	return 0;
}

/* A partition's name: no two of one daemon are alike. */
static int name(unsigned ordinal, const unsigned char *tpcs, struct partition *answer)
{
	static unsigned made;
	char number[32];

	(void)tpcs;
	answer->ordinal = ordinal;
	memcpy(answer->id, "PartitionOfATestWithoutAGPU000000000", ID_BYTES);
	int length = snprintf(number, sizeof(number), "%u", ordinal * 1000 + ++made);
	memcpy(answer->id + ID_BYTES - length, number, (size_t)length);
	return 0;
}

static int most_chunks(const struct resource *whole, unsigned sms, unsigned *answer)
{
	*answer = whole->sm_count / sms;
	return 0;
}

static int split(const struct resource *whole, unsigned chunks, unsigned sms,
		 struct resource **answer, struct resource *remainder)
{
	for (unsigned i = 0; i < chunks; i++) {
		(*answer)[i] = *whole;
		(*answer)[i].sm_count = sms;
	}
	*remainder = *whole;
	remainder->sm_count -= chunks * sms;
	return 0;
}

static int join(struct resource **chunks, unsigned number, void **answer)
{
	(void)chunks;
	*answer = NULL;
	return number ? 0 : INVALID_RESOURCE;
}

static int tpcs(unsigned ordinal, void **joined, unsigned char *answer)
{
	(void)ordinal;
	(void)joined;
	memset(answer, 0, MOST_TPCS);
	return 0;
}

static int send_joined(void *connection, void **joined)
{
	(void)connection;
	(void)joined;
	return 0;
}

static unsigned chunk_size(unsigned ordinal)
{
	(void)ordinal;
	return SMS_IN_CHUNK;
}

static int empty(void)
{
	return 0;
}

static void *table[ENTRIES] = {
    (void *)(uintptr_t)sizeof(table),
    empty,
    empty,
    empty,
    empty,
    empty,
    empty,
    empty,
    empty,
    empty,
    start,
    has_singletons,
    devices,
    device,
    sizes,
    resource,
    ordinal_of,
    name,
    most_chunks,
    split,
    join,
    tpcs,
    send_joined,
    chunk_size,
};

int cuGetExportTable(const void **answer, const unsigned char *id)
{
	(void)id;
	*answer = table;
	return 0;
}
