/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three calls for a program that shares its GPU: link with -lberth_injob, or let the site preload
 * the library. Without a guard on the node they return at once. All are safe in threads and after
 * fork, and none ever fails.
 */
#ifndef BERTH_INJOB_H
#define BERTH_INJOB_H

#ifdef __cplusplus
extern "C" {
#endif

/* Preparation is over and the steps begin. Returns 1 where a guard can hear it, else 0. */
int berth_ready(void);

/*
 * A step is done, or a request served. `seconds` is how long it took; a negative number means the
 * time since the last call. Returns 1 where a guard can hear it, else 0.
 */
int berth_step(double seconds);

/* A good place to pause: waits for as long as the guard asks. */
void berth_gate(void);

#ifdef __cplusplus
}
#endif

#endif
