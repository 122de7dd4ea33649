/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every bound of the formats in one place. Nothing that crosses a process is read or written
 * without one of these.
 */
#pragma once

#define REQUEST_MAX_BYTES 65536
#define REPLY_MAX_BYTES 16384
#define REPLY_MAX_LINES 64
#define WIRE_KEY_MAX 64

/* What one field of a job may have, to be sent; Slurm itself takes less of most. */
#define FIELD_MAX 4096
#define NODE_LIST_MAX 32768
#define PARTITIONS_MAX 64
#define FEATURES_MAX 256

#define REPLY_MAX_NODES 1024
#define NODE_NAME_MAX 255
/* Nodes that one job excludes: each is looked up. */
#define OTHERS_MAX 131072
/* A position is K of the GRES type gK. */
#define GPU_POSITIONS 64
#define MIN_CPUS_MAX 1000000u
#define PN_MIN_CPUS_MAX 65533u
#define MEM_PER_NODE_MAX ((uint64_t)1 << 40)
#define SEGMENT_BODY_MAX 4096
#define MESSAGE_MAX 512
/* In which a user whose requests are dear is not asked for. */
#define BUSY_SECONDS_MAX 60
/* MiB of one GPU. */
#define GPU_MEM_MAX (1u << 24)

/* The share file of a job on its node. */
#define SHARE_FILE_MAX 16384
#define SHARE_VARIABLES_MAX 64
/* The NVIDIA driver numbers GPUs from 0 on, and keeps 255 for its control device. */
#define DEVICE_MINORS 255
#define PATH_BYTES 1024

/* Slurm refuses a job whose Extra, features or TRES text is longer. */
#define SLURM_TEXT_MAX 1024
/* A text that belongs to others (admin_comment, Extra) is left alone beyond this. */
#define FOREIGN_TEXT_MAX 65536
#define FLAG_VALUE_MAX 255
#define MODEL_NAME_MAX 63
#define GPUS_MAX 1000000u

#define NONCE_LEN 16
