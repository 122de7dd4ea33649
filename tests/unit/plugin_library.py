# SPDX-License-Identifier: Apache-2.0
"""The plugins' parts that need no Slurm, built with the host's compiler and called through ctypes."""

import ctypes
import functools

from tests import building

PURE = (
    "text/text.c",
    "config/options.c",
    "text/tres.c",
    "text/tres_element.c",
    "config/counted.c",
    "text/features.c",
    "config/config.c",
    "config/config_table.c",
    "pin/segment.c",
    "reply/reply.c",
    "reply/reply_lines.c",
    "berthd/client.c",
    "pin/pinned.c",
    "berthd/recent.c",
    "text/hostlist.c",
    "pin/pin_text.c",
    "node/share_file.c",
    "text/path_list.c",
    "berthd/breaker.c",
    "berthd/hook_log.c",
)
BOOLEAN = (
    "breaker_allows",
    "config_load",
    "config_parse",
    "config_path",
    "config_skips",
    "env_strip_models",
    "gpus_strip_models",
    "gres_strip_models",
    "option_value_ok",
    "path_list_element_ok",
    "path_list_has",
    "pin_extra",
    "pin_tres",
    "recent_has",
    "reply_parse",
    "segment_claimed",
    "share_file_degrade",
    "share_file_parse",
    "tres_strip_models",
    "unescape",
)
GPU_POSITIONS = 64
SHARE_FILE_MAX = 16384
SHARE_VARIABLES_MAX = 64
REPLY_MAX_BYTES = 16384
PATTERN = b"\xa5"


class Text(ctypes.Structure):
    """struct text."""

    _fields_ = (
        ("data", ctypes.c_char_p),
        ("len", ctypes.c_size_t),
        ("cap", ctypes.c_size_t),
        ("limit", ctypes.c_size_t),
        ("failed", ctypes.c_bool),
    )


class Found(ctypes.Structure):
    """struct tres_found."""

    _fields_ = (
        ("gpu", ctypes.c_bool),
        ("gpus", ctypes.c_uint64),
        ("model", ctypes.c_char * 64),
        ("several_models", ctypes.c_bool),
        ("bad_model", ctypes.c_bool),
        ("bad_count", ctypes.c_bool),
        ("position_type", ctypes.c_bool),
        ("shared", ctypes.c_bool),
        ("seat", ctypes.c_bool),
        ("hidden", ctypes.c_bool),
    )


class Config(ctypes.Structure):
    """struct hook_config."""

    _fields_ = (
        ("socket", ctypes.c_char * 108),
        ("deadline_ms", ctypes.c_uint32),
        ("breaker_seconds", ctypes.c_uint32),
        ("fail_closed", ctypes.c_bool),
        ("skip_partitions", ctypes.c_char * 1024),
        ("skipped_shards", ctypes.c_bool),
        ("def_cpu_per_gpu", ctypes.c_uint32),
        ("message", ctypes.c_int),
        ("layout", ctypes.c_int),
        ("hook_log", ctypes.c_char * 1024),
        ("pinned_file", ctypes.c_char * 1024),
    )


NodeExists = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_char_p)


class Expected(ctypes.Structure):
    """struct reply_expected."""

    _fields_ = (
        ("nonce", ctypes.c_char_p),
        ("gpus", ctypes.c_uint64),
        ("gpus_per_node", ctypes.c_uint64),
        ("min_cpus", ctypes.c_uint64),
        ("share", ctypes.c_uint32),
        ("cpus_per_tres", ctypes.c_bool),
        ("batch", ctypes.c_bool),
        ("exc_nodes", ctypes.c_bool),
        ("node_exists", NodeExists),
        ("licenses", ctypes.c_char_p),
        ("segmented", ctypes.c_uint32),
        ("nodes", ctypes.c_uint32),
    )


class Reply(ctypes.Structure):
    """struct reply."""

    _fields_ = (
        ("ours", ctypes.c_bool),
        ("verb", ctypes.c_int),
        ("nodes", ctypes.c_char_p),
        ("node_count", ctypes.c_size_t),
        ("exc_nodes", ctypes.c_char_p),
        ("gpus", ctypes.c_uint8 * GPU_POSITIONS),
        ("gpu_count", ctypes.c_size_t),
        ("seats", ctypes.c_bool),
        ("guest", ctypes.c_bool),
        ("begin", ctypes.c_uint64),
        ("share", ctypes.c_uint32),
        ("asked_share", ctypes.c_uint32),
        ("gpu_mem", ctypes.c_uint64),
        ("way", ctypes.c_char_p),
        ("min_cpus", ctypes.c_uint32),
        ("pn_min_cpus", ctypes.c_uint16),
        ("mem_per_node", ctypes.c_uint64),
        ("licenses", ctypes.c_char_p),
        ("segment", ctypes.c_char_p),
        ("message", ctypes.c_char_p),
        ("urgent", ctypes.c_bool),
        ("node_gpus", ctypes.c_uint64),
        ("segment_size", ctypes.c_uint64),
        ("seconds", ctypes.c_uint64),
        ("text", ctypes.c_char * (REPLY_MAX_BYTES + 1)),
    )


class ShareVariable(ctypes.Structure):
    """struct share_variable."""

    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_char_p), ("prepended", ctypes.c_bool))


class ShareFile(ctypes.Structure):
    """struct share_file."""

    _fields_ = (
        ("job", ctypes.c_uint32),
        ("uid", ctypes.c_uint32),
        ("degraded", ctypes.c_bool),
        ("why", ctypes.c_char_p),
        ("minors", ctypes.c_uint8 * GPU_POSITIONS),
        ("minor_count", ctypes.c_size_t),
        ("variables", ShareVariable * SHARE_VARIABLES_MAX),
        ("variable_count", ctypes.c_size_t),
        ("text", ctypes.c_char * (SHARE_FILE_MAX + 1)),
    )


@functools.cache
def library() -> ctypes.CDLL:
    """Build once per test run; warnings are errors, as in the plugins' own Makefile."""
    flags = ("-fPIC", "-shared", "-pthread")
    built = ctypes.CDLL(str(building.built("libberthpure.so", [building.PLUGINS / name for name in PURE], flags=flags)))
    for name in BOOLEAN:
        getattr(built, name).restype = ctypes.c_bool
    built.path_list_separators.restype = ctypes.c_char_p
    built.option_in_env.restype = ctypes.c_void_p
    built.tres_per_gpu.restype = ctypes.c_uint32
    for name in ("pinned_array_id", "pinned_kinds", "pinned_record_id"):
        getattr(built, name).restype = ctypes.c_uint32
    return built


def text(limit: int = 1 << 20) -> Text:
    """An empty growable string."""
    made = Text()
    library().text_init(ctypes.byref(made), ctypes.c_size_t(limit))
    return made


def taken(made: Text) -> bytes:
    """What a growable string holds; frees it."""
    value = made.data or b""
    library().text_free(ctypes.byref(made))
    return value


def in_place(function: str, value: str) -> str:
    """Call a function that rewrites its string where it stands; nothing behind its end may change."""
    raw = value.encode()
    buffer = ctypes.create_string_buffer(raw + b"\0" + PATTERN * 16)
    getattr(library(), function)(buffer)
    assert buffer.raw[len(raw) + 1 : len(raw) + 17] == PATTERN * 16
    return buffer.value.decode()
