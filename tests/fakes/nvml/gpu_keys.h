/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of a "gpu" statement. */
#ifndef FAKE_NVML_GPU_KEYS_H
#define FAKE_NVML_GPU_KEYS_H

#include "machine.h"

enum gpu_key_result { GPU_KEY_SET, GPU_KEY_UNKNOWN, GPU_KEY_BAD_VALUE };

void gpu_set_defaults(struct gpu *gpu, unsigned int index);
enum gpu_key_result gpu_set(struct gpu *gpu, const char *key, const char *value);

#endif
