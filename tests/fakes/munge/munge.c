/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libmunge.so.2 without munged, for tests. Its credential is MUNGE:HEX: with HEX for
 * UID:TIME:SERIAL:PAYLOAD in hexadecimal digits, so a test can make any credential by hand.
 * BERTH_FAKE_MUNGE=hang: a call takes 5 s; fail: munged does not answer.
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, NO_MUNGED = 6, BAD_CREDENTIAL = 8, EXPIRED = 15, REWOUND = 16, REPLAYED = 17 };
enum { ENCODE_TIME = 6, DECODE_TIME = 7, SOCKET = 8 };

#define TIME_TO_LIVE 300
#define CREDENTIAL_MAX 4096
#define SEEN_MAX 4096

struct context {
	char socket[108];
	time_t encoded, decoded;
};

static int trouble(void)
{
	const char *word = getenv("BERTH_FAKE_MUNGE");

	if (word && !strcmp(word, "hang"))
		sleep(5);
	return word && !strcmp(word, "fail") ? NO_MUNGED : SUCCESS;
}

void *munge_ctx_create(void)
{
	return calloc(1, sizeof(struct context));
}

int munge_ctx_set(void *context, int option, ...)
{
	struct context *made = context;
	va_list values;

	if (option != SOCKET)
		return BAD_CREDENTIAL;
	va_start(values, option);
	snprintf(made->socket, sizeof(made->socket), "%s", va_arg(values, char *));
	va_end(values);
	return SUCCESS;
}

int munge_ctx_get(void *context, int option, ...)
{
	const struct context *made = context;
	va_list values;

	va_start(values, option);
	*va_arg(values, time_t *) = option == ENCODE_TIME ? made->encoded : made->decoded;
	va_end(values);
	return SUCCESS;
}

const char *munge_strerror(int error)
{
	return error == NO_MUNGED ? "Munged communication error" : "Invalid credential";
}

int munge_encode(char **credential, void *context, const void *payload, int len)
{
	char plain[CREDENTIAL_MAX];
	size_t count;
	int error = trouble();

	(void)context;
	*credential = NULL;
	if (error)
		return error;
	count = (size_t)snprintf(plain, sizeof(plain), "%u:%lld:%d:%.*s", geteuid(),
				 (long long)time(NULL), getpid(), len, (const char *)payload);
	*credential = malloc(2 * count + 8);
	if (!*credential)
		return BAD_CREDENTIAL;
	strcpy(*credential, "MUNGE:");
	for (size_t i = 0; i < count; i++)
		sprintf(*credential + 6 + 2 * i, "%02x", (unsigned char)plain[i]);
	strcat(*credential, ":");
	return SUCCESS;
}

/* As with munge, the one cache of all that were seen. */
static int replayed(const char *credential)
{
	static char *seen[SEEN_MAX];
	static size_t count;

	for (size_t i = 0; i < count; i++)
		if (!strcmp(seen[i], credential))
			return 1;
	if (count < SEEN_MAX)
		seen[count++] = strdup(credential);
	return 0;
}

int munge_decode(const char *credential, void *context, void **payload, int *len, uint32_t *uid,
		 uint32_t *gid)
{
	struct context *made = context;
	char plain[CREDENTIAL_MAX];
	size_t count = 0;
	long long encoded;
	unsigned int byte, owner;
	int used = 0;
	int error = trouble();

	*payload = NULL;
	*len = 0;
	*uid = *gid = UINT32_MAX;
	if (error)
		return error;
	if (strncmp(credential, "MUNGE:", 6) != 0)
		return BAD_CREDENTIAL;
	for (const char *hex = credential + 6; sscanf(hex, "%2x", &byte) == 1; hex += 2) {
		plain[count++] = (char)byte;
		if (count == sizeof(plain) - 1)
			return BAD_CREDENTIAL;
	}
	plain[count] = '\0';
	if (sscanf(plain, "%u:%lld:%*d:%n", &owner, &encoded, &used) != 2 || !used)
		return BAD_CREDENTIAL;
	*uid = *gid = owner;
	*len = (int)count - used;
	*payload = malloc((size_t)*len + 1);
	if (!*payload)
		return BAD_CREDENTIAL;
	memcpy(*payload, plain + used, (size_t)*len + 1);
	made->encoded = encoded;
	made->decoded = time(NULL);
	if (made->decoded > encoded + TIME_TO_LIVE)
		return EXPIRED;
	if (made->decoded < encoded - TIME_TO_LIVE)
		return REWOUND;
	return replayed(credential) ? REPLAYED : SUCCESS;
}
