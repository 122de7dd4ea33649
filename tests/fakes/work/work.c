/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts what compiled code does, on each machine the same: a step for each basic block of the
 * plugin (-fsanitize-coverage=trace-pc), and a step for each byte that libc goes through for it
 * (-Wl,--wrap=NAME). The plugin is built with -fno-builtin, so that it calls libc for each.
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t work;

void work_reset(void);
uint64_t work_done(void);
void __sanitizer_cov_trace_pc(void);

void work_reset(void)
{
	work = 0;
}

uint64_t work_done(void)
{
	return work;
}

void __sanitizer_cov_trace_pc(void)
{
	work++;
}

static void to(const char *from, const char *found)
{
	work += 1 + (found ? (size_t)(found - from) : strlen(from));
}

static size_t alike(const char *a, const char *b, size_t most)
{
	size_t n = 0;

	while (n < most && a[n] && a[n] == b[n])
		n++;
	return n;
}

/* clang-format off */
#define COUNTED(type, name, arguments, values, bytes)                                              \
	type __wrap_##name arguments;                                                              \
	type __wrap_##name arguments { work += 1 + (bytes); return name values; }
#define FINDS(name, arguments, values)                                                             \
	char *__wrap_##name arguments;                                                             \
	char *__wrap_##name arguments { char *found = name values; to(s, found); return found; }

COUNTED(size_t, strlen, (const char *s), (s), strlen(s))
COUNTED(size_t, strnlen, (const char *s, size_t n), (s, n), strnlen(s, n))
COUNTED(size_t, strspn, (const char *s, const char *set), (s, set), strspn(s, set))
COUNTED(size_t, strcspn, (const char *s, const char *set), (s, set), strcspn(s, set))
COUNTED(int, strcmp, (const char *a, const char *b), (a, b), alike(a, b, SIZE_MAX))
COUNTED(int, strncmp, (const char *a, const char *b, size_t n), (a, b, n), alike(a, b, n))
COUNTED(int, strcasecmp, (const char *a, const char *b), (a, b), strlen(b))
COUNTED(int, strncasecmp, (const char *a, const char *b, size_t n), (a, b, n), n)
COUNTED(int, memcmp, (const void *a, const void *b, size_t n), (a, b, n), n)
COUNTED(void *, memcpy, (void *a, const void *b, size_t n), (a, b, n), n)
COUNTED(void *, memmove, (void *a, const void *b, size_t n), (a, b, n), n)
COUNTED(void *, memset, (void *a, int c, size_t n), (a, c, n), n)
COUNTED(void *, memchr, (const void *s, int c, size_t n), (s, c, n),
	memchr(s, c, n) ? (size_t)((const char *)memchr(s, c, n) - (const char *)s) : n)
COUNTED(void *, memrchr, (const void *s, int c, size_t n), (s, c, n), n)
COUNTED(void *, memmem, (const void *s, size_t n, const void *t, size_t m), (s, n, t, m), n)
COUNTED(char *, strdup, (const char *s), (s), strlen(s))
COUNTED(char *, strndup, (const char *s, size_t n), (s, n), strnlen(s, n))
COUNTED(void *, realloc, (void *s, size_t n), (s, n), n)
COUNTED(unsigned long, strtoul, (const char *s, char **end, int base), (s, end, base), strlen(s))
FINDS(strchr, (const char *s, int c), (s, c))
FINDS(strchrnul, (const char *s, int c), (s, c))
FINDS(strrchr, (const char *s, int c), (s, c))
FINDS(strstr, (const char *s, const char *t), (s, t))
FINDS(strcasestr, (const char *s, const char *t), (s, t))
FINDS(strpbrk, (const char *s, const char *set), (s, set))
/* clang-format on */

char *__wrap_strtok_r(char *s, const char *set, char **rest);
int __wrap_vsnprintf(char *to, size_t size, const char *format, va_list arguments);
int __wrap_snprintf(char *to, size_t size, const char *format, ...);

char *__wrap_strtok_r(char *s, const char *set, char **rest)
{
	char *word = strtok_r(s, set, rest);

	work += 1 + (word ? strlen(word) : 0);
	return word;
}

int __wrap_vsnprintf(char *to, size_t size, const char *format, va_list arguments)
{
	int len = vsnprintf(to, size, format, arguments);

	work += 1 + (len > 0 ? (size_t)len : 0);
	return len;
}

int __wrap_snprintf(char *to, size_t size, const char *format, ...)
{
	va_list arguments;
	int len;

	va_start(arguments, format);
	len = __wrap_vsnprintf(to, size, format, arguments);
	va_end(arguments);
	return len;
}
