/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job at duty p idles 1/p - 1 times as long as it works. After each spell of work one thread lets
 * the GPU finish what was queued, and sets the end of a nap by how long that spell was; all threads
 * wait for that end. There are no locks, only times, so a thread that dies in here holds none.
 */
#include "gate.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "berth_injob.h"
#include "driver/driver.h"

#define MS 1000000ULL
/* A spell of work at a low duty; at a high one it is longer, so that emptying the GPU costs little.
 */
#define SHORTEST_SPELL (20 * MS)
#define LONGEST_SPELL (200 * MS)
/* What was idled beyond a nap counts for the next one, up to this. */
#define MOST_CREDIT (50 * MS)
/* A program that launched nothing for a while was not working all that time. */
#define MOST_WORK (1000 * MS)
/* A changed order is seen after so long. */
#define LOOK_AGAIN (2 * MS)
/* A thread that waits longer for the GPU than this no longer keeps others from settling. */
#define LONGEST_TURN (2000 * MS)

/* Launches of the first spell, and the most of any: kernels are queued faster than they run. */
#define FIRST_ALLOWANCE 16
#define MOST_ALLOWANCE 4096

static _Atomic uint64_t working_since, nap_until, idle_since, turn_taken, credit;
/* Launches that this spell may still make, and how many it was given. */
static _Atomic int64_t allowance = FIRST_ALLOWANCE, given = FIRST_ALLOWANCE;

void gate_forget(void)
{
	atomic_store(&working_since, 0);
	atomic_store(&nap_until, 0);
	atomic_store(&idle_since, 0);
	atomic_store(&turn_taken, 0);
	atomic_store(&credit, 0);
	atomic_store(&given, FIRST_ALLOWANCE);
	atomic_store(&allowance, FIRST_ALLOWANCE);
}

static uint64_t spell_at(unsigned int duty)
{
	uint64_t spell = SHORTEST_SPELL * DUTY_OPEN / (DUTY_OPEN - duty);

	return spell < LONGEST_SPELL ? spell : LONGEST_SPELL;
}

/* As many launches as fit into a spell, by what those of the last one took. */
static void allow_launches(uint64_t worked, uint64_t spell)
{
	int64_t before = atomic_load(&given), left = atomic_load(&allowance);
	uint64_t made = (uint64_t)(left > 0 ? before - left : before);
	uint64_t next = worked ? spell * made / worked : MOST_ALLOWANCE;

	/* A spell that was short tells little of a longer one. */
	if (next > 2 * (uint64_t)before)
		next = 2 * (uint64_t)before;
	if (next > MOST_ALLOWANCE)
		next = MOST_ALLOWANCE;
	atomic_store(&given, next ? (int64_t)next : 1);
	atomic_store(&allowance, next ? (int64_t)next : 1);
}

static void sleep_until(uint64_t until)
{
	struct timespec time = {(time_t)(until / 1000000000ULL), (long)(until % 1000000000ULL)};

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
}

/* While a stream is being recorded into a graph nothing runs, and waiting would spoil the record.
 */
static bool recording(CUstream stream)
{
	CUresult (*ask)(CUstream, int *) =
	    (CUresult(*)(CUstream, int *))driver_symbol("cuStreamIsCapturing");
	int capturing = 0;

	return ask && (ask(stream, &capturing) || capturing);
}

/* Waits for the stream alone, so that other streams may be recorded meanwhile. */
static void drain(CUstream stream)
{
	CUresult (*create)(CUevent *, u32) =
	    (CUresult(*)(CUevent *, u32))driver_symbol("cuEventCreate");
	CUresult (*record)(CUevent, CUstream) =
	    (CUresult(*)(CUevent, CUstream))driver_symbol("cuEventRecord");
	CUresult (*wait)(CUevent) = (CUresult(*)(CUevent))driver_symbol("cuEventSynchronize");
	CUresult (*destroy)(CUevent) = (CUresult(*)(CUevent))driver_symbol("cuEventDestroy_v2");
	CUresult (*exchange)(int *) =
	    (CUresult(*)(int *))driver_symbol("cuThreadExchangeStreamCaptureMode");
	int mode = CAPTURE_MODE_RELAXED;
	CUevent event;

	if (!create || !record || !wait || !destroy)
		return;
	if (exchange)
		exchange(&mode);
	if (!create(&event, EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING)) {
		if (!record(event, stream))
			wait(event);
		destroy(event);
	}
	if (exchange)
		exchange(&mode);
}

static void count_idle(uint64_t ns)
{
	struct word *word = &process.words.word[0];

	atomic_fetch_add_explicit(&process.own->idle_ns, ns, memory_order_relaxed);
	atomic_store(&process.own->epoch, atomic_load(&word->order->duty) >> 32);
}

/* Ends a spell of work; false if another thread is at it. */
static bool settle(CUstream stream, bool stream_known, unsigned int duty, uint64_t now)
{
	uint64_t taken = atomic_load(&turn_taken), since, work, nap, saved;
	int cancelled;

	if ((taken && now < taken + LONGEST_TURN) ||
	    !atomic_compare_exchange_strong(&turn_taken, &taken, now))
		return false;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelled);
	if (stream_known)
		drain(stream);
	since = atomic_load(&working_since);
	now = now_ns();
	/* None: another thread has settled this spell meanwhile. */
	work = since && now > since ? now - since : 0;
	if (work > MOST_WORK)
		work = MOST_WORK;
	if (work) {
		allow_launches(work, spell_at(duty));
		nap = work * (DUTY_OPEN - duty) / duty;
		saved = atomic_exchange(&credit, 0);
		nap -= saved < nap ? saved : nap;
		atomic_store(&nap_until, now + nap);
		atomic_store(&idle_since, now);
		atomic_store(&working_since, 0);
	}
	atomic_store(&turn_taken, 0);
	pthread_setcancelstate(cancelled, NULL);
	return true;
}

/* The first launch after a nap: until then the GPU was idle, for longer than it had to be. */
static bool begins_spell(uint64_t now, uint64_t nap_ended)
{
	uint64_t none = 0, late = nap_ended && now > nap_ended ? now - nap_ended : 0;
	uint64_t idle;

	if (!atomic_compare_exchange_strong(&working_since, &none, now))
		return false;
	/* The spell was settled between our look at the nap and now. */
	if (now < atomic_load(&nap_until)) {
		atomic_store(&working_since, 0);
		return false;
	}
	idle = atomic_exchange(&idle_since, 0);
	if (idle && late < MOST_CREDIT)
		count_idle(now - idle);
	else if (idle)
		count_idle(nap_ended - idle);
	atomic_store(&credit, late < MOST_CREDIT ? late : MOST_CREDIT);
	return true;
}

void gate_wait(CUstream stream, bool stream_known)
{
	if (stream_known && recording(stream))
		return;
	for (;;) {
		unsigned int duty = words_duty(&process.words);
		uint64_t now = now_ns(), until = atomic_load(&nap_until);

		if (atomic_load(&process.leaving)) {
			pause();
		} else if (duty == DUTY_OPEN) {
			gate_forget();
			return;
		} else if (duty == 0) {
			sleep_until(now + LOOK_AGAIN);
			count_idle(now_ns() - now);
			atomic_store(&working_since, 0);
			atomic_store(&nap_until, 0);
		} else if (now < until) {
			sleep_until(until < now + LOOK_AGAIN ? until : now + LOOK_AGAIN);
		} else if ((begins_spell(now, until) ||
			    now < atomic_load(&working_since) + spell_at(duty)) &&
			   atomic_fetch_sub(&allowance, 1) > 0) {
			return;
		} else if (!settle(stream, stream_known, duty, now)) {
			sleep_until(now + LOOK_AGAIN / 8);
		}
	}
}

EXPORT int berth_ready(void)
{
	process_open();
	atomic_store(&process.own->ready, 1);
	return process.words.count > 0;
}

EXPORT int berth_step(double seconds)
{
	static _Atomic uint64_t last;
	uint64_t now = now_ns(), before = atomic_exchange(&last, now), steps;
	uint64_t ns = before ? now - before : 0;
	struct slot *own;

	process_open();
	own = process.own;
	if (seconds >= 0)
		ns = (uint64_t)(seconds * 1e9);
	if (seconds >= 0 || before) {
		steps = atomic_load(&own->steps);
		atomic_store(&own->recent_us[steps % 16],
			     ns / 1000 < UINT32_MAX ? (uint32_t)(ns / 1000) : UINT32_MAX);
		atomic_store(&own->at, now);
		atomic_fetch_add(&own->step_ns, ns);
		atomic_store(&own->ready, 1);
		atomic_fetch_add(&own->steps, 1);
	}
	berth_gate();
	return process.words.count > 0;
}

EXPORT void berth_gate(void)
{
	process_open();
	if (!words_all_open(&process.words))
		gate_wait(NULL, false);
}
