/* SPDX-License-Identifier: Apache-2.0 */
#include "config/options.h"

#include <string.h>

#include "text/limits.h"
#include "text/text.h"

static bool one_of(const char *value, size_t len, const char *const *words)
{
	for (; *words; words++)
		if (strlen(*words) == len && !strncmp(value, *words, len))
			return true;
	return false;
}

/* One to `max_digits` digits from *s on; *s moves behind them. */
static bool take_digits(const char **s, size_t max_digits, uint64_t *out)
{
	uint64_t n = 0;
	size_t count = 0;

	while (**s >= '0' && **s <= '9') {
		if (++count > max_digits)
			return false;
		n = n * 10 + (uint64_t)(*(*s)++ - '0');
	}
	*out = n;
	return count > 0;
}

bool time_seconds(const char *s, uint64_t *seconds)
{
	uint64_t part[3] = {0, 0, 0};
	uint64_t days = 0;
	bool has_days = false;
	int parts = 0;

	for (;;) {
		uint64_t n;

		if (!take_digits(&s, 9, &n))
			return false;
		if (*s == '-' && !has_days && parts == 0) {
			days = n;
			has_days = true;
			s++;
			continue;
		}
		part[parts++] = n;
		if (*s != ':')
			break;
		if (parts == 3)
			return false;
		s++;
	}
	if (*s)
		return false;
	if (has_days || parts == 3)
		*seconds = days * 86400 + part[0] * 3600 + part[1] * 60 + part[2];
	else
		*seconds = part[0] * 60 + part[1];
	return true;
}

static bool check_time(const char *value)
{
	uint64_t seconds;

	return time_seconds(value, &seconds);
}

bool preflight_value(const char *value, uint64_t *seconds, bool *must)
{
	size_t len = strcspn(value, ",");
	char time[FLAG_VALUE_MAX + 1];
	uint64_t given;

	if (len >= sizeof(time) || (value[len] && strcmp(value + len, ",must")))
		return false;
	memcpy(time, value, len);
	time[len] = '\0';
	if (value[len])
		*must = true;
	if (!len)
		return true;
	if (!time_seconds(time, &given) || given < 1)
		return false;
	*seconds = given;
	return true;
}

static bool check_preflight(const char *value)
{
	uint64_t seconds;
	bool must;

	return !strcmp(value, PREFLIGHT_NO) || preflight_value(value, &seconds, &must);
}

static bool check_locality(const char *value)
{
	static const char *const levels[] = {"nvlink", "node", "leaf", "pod", "any", NULL};
	const char *at = strchr(value, '@');

	if (at && !check_time(at + 1))
		return false;
	return one_of(value, at ? (size_t)(at - value) : strlen(value), levels);
}

static bool check_class(const char *value)
{
	static const char *const classes[] = {"compute", "mixed", "memory", NULL};

	return one_of(value, strlen(value), classes);
}

static bool check_tier(const char *value)
{
	static const char *const tiers[] = {"exclusive",
					    "guaranteed",
					    "guaranteed,mps",
					    "opportunistic",
					    "opportunistic,upgrade",
					    "opportunistic,mps",
					    "opportunistic,upgrade,mps",
					    "opportunistic,mps,upgrade",
					    NULL};

	return one_of(value, strlen(value), tiers);
}

static bool check_share(const char *value)
{
	uint64_t percent;

	if (!take_digits(&value, 3, &percent) || percent < 1 || percent > 100)
		return false;
	return !*value || !strcmp(value, "%");
}

static bool check_mem(const char *value)
{
	uint64_t size;

	if (!take_digits(&value, 9, &size) || size < 1)
		return false;
	return !*value || (strchr("MGT", *value) && !value[1]);
}

static bool check_group(const char *value)
{
	uint64_t gpus;

	return take_digits(&value, 5, &gpus) && gpus >= 1 && !*value;
}

static bool check_hang(const char *value)
{
	static const char *const ways[] = {"tell", "requeue", NULL};

	return one_of(value, strlen(value), ways);
}

static bool check_retry(const char *value)
{
	uint64_t times;

	if (!strcmp(value, "auto"))
		return true;
	return take_digits(&value, 3, &times) && times <= 100 && !*value;
}

#define RIGHT_TIME "a time as Slurm writes it (M, M:S, H:M:S, D-H, D-H:M, D-H:M:S)"

const struct berth_option berth_options[] = {
    {"locality", "LEVEL[@TIME]",
     "GPUs joined at LEVEL: nvlink, node, leaf, pod or any; after TIME one level less will do",
     "nvlink, node, leaf, pod or any, and after an @ " RIGHT_TIME, VALUE_REQUIRED, check_locality},
    {"group", "N",
     "each N GPUs, in the order of ranks, in one NVLink domain; the groups may be in several",
     "a whole number from 1 to 99999", VALUE_REQUIRED, check_group},
    {"app-class", "CLASS", "how much the job suffers from a slow GPU: compute, mixed or memory",
     "compute, mixed or memory", VALUE_REQUIRED, check_class},
    {"gpu-tier", "TIER",
     "exclusive, guaranteed[,mps] (may have a guest) or opportunistic[,upgrade][,mps] (a guest)",
     "exclusive, guaranteed or opportunistic; behind guaranteed may stand ,mps, behind "
     "opportunistic ,upgrade and ,mps",
     VALUE_REQUIRED, check_tier},
    {"gpu-share", "PCT", "share of one GPU's multiprocessors, 1 to 100 percent",
     "a whole number of percent from 1 to 100", VALUE_REQUIRED, check_share},
    {"gpu-mem", "SIZE", "GPU memory the job needs, such as 20G",
     "a whole number, at least 1, with M, G or T (none: M)", VALUE_REQUIRED, check_mem},
    {"preflight", "TIME[,must]",
     "the script runs first on one GPU, for at most TIME (may be left out); no: not even by the "
     "site's rule",
     RIGHT_TIME ", at least one second; behind it may stand ,must; or no", VALUE_OPTIONAL,
     check_preflight},
    {"movable", "COST",
     "the job may be moved to other GPUs; a move costs it COST of time (may be left out)",
     RIGHT_TIME, VALUE_OPTIONAL, check_time},
    {"retry", "auto|N", "run again after a failure: as its class advises, or at most N times",
     "auto or a whole number from 0 to 100", VALUE_REQUIRED, check_retry},
    {"on-hang", "tell|requeue", "what to do where nothing moves in the job any more",
     "tell or requeue", VALUE_REQUIRED, check_hang},
};

const size_t berth_option_count = sizeof(berth_options) / sizeof(berth_options[0]);

bool option_value_ok(const struct berth_option *option, const char *value)
{
	if (!value || !*value)
		return option->takes == VALUE_OPTIONAL;
	return strlen(value) <= FLAG_VALUE_MAX && option->check(value);
}

/* Slurm writes _ for every - of a flag's name. Returns what follows the name and its '='. */
static const char *after_name(const char *entry, const char *name)
{
	for (; *name; name++, entry++)
		if (*entry != (*name == '-' ? '_' : *name))
			return NULL;
	return *entry == '=' ? entry + 1 : NULL;
}

const struct berth_option *option_in_env(const char *entry, const char *prefix, const char **value)
{
	size_t prefix_len = strlen(prefix);
	size_t own_len = strlen(OPTION_ENV_PREFIX);

	if (strncmp(entry, prefix, prefix_len))
		return NULL;
	entry += prefix_len;
	if (strncmp(entry, OPTION_ENV_PREFIX, own_len))
		return NULL;
	entry += own_len;
	for (size_t i = 0; i < berth_option_count; i++) {
		const char *found = after_name(entry, berth_options[i].name);

		if (!found)
			continue;
		*value = strcmp(found, "(null)") ? found : "";
		return &berth_options[i];
	}
	return NULL;
}
