/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stable ids of messages. docs/troubleshooting.md explains each.
 */
#ifndef BERTH_MESSAGES_H
#define BERTH_MESSAGES_H

/* What stands at the end of a message: "text" BERTH_ID(801) is "text [BERTH-801]". */
#define BERTH_ID(number) " [BERTH-" #number "]"

#endif
