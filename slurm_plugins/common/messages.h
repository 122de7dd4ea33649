/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stable ids of messages. docs/user/troubleshooting.md explains each.
 */
#pragma once

/* What stands at the end of a message: "text" BERTH_ID(801) is "text [BERTH-801]". */
#define BERTH_ID(number) " [BERTH-" #number "]"
