# SPDX-License-Identifier: Apache-2.0
"""Which values of the flags the plugins take, and where they find them."""

import ctypes

import pytest

from tests.unit.plugin_library import library

RIGHT = {
    "locality": ["nvlink", "node", "leaf", "pod", "any", "nvlink@10", "node@1:30", "leaf@1:00:00", "pod@2-3:04:05"],
    "group": ["1", "64", "99999"],
    "app-class": ["compute", "mixed", "memory"],
    "gpu-tier": ["exclusive", "guaranteed", "guaranteed,mps", "opportunistic", "opportunistic,mps,upgrade"],
    "gpu-share": ["1", "100", "30%"],
    "gpu-mem": ["1", "1M", "20G", "2T"],
    "preflight": ["", "1", "0:01", "1-0", "no", ",must", "10,must", "0:30,must"],
    "movable": ["", "0", "10", "1-2:3"],
    "retry": ["auto", "0", "100"],
    "on-hang": ["tell", "requeue"],
}
WRONG = {
    "locality": ["", "rack", "nvlink@", "nvlink@x", "@10", "nvlink@1:2:3:4", "nvlink@1-2-3", "NVLINK", "node "],
    "group": ["", "0", "-1", "100000", "8x", "8,8", " 8"],
    "app-class": ["", "a", "computer", "comput"],
    "gpu-tier": ["", "gold", "exclusive,mps", "guaranteed,upgrade", "opportunistic,", "opportunistic,mps,mps"],
    "gpu-share": ["", "0", "101", "30%%", "3.5", "-1", "0030x", "1000"],
    "gpu-mem": ["", "0", "0G", "1K", "1GB", "G", "-1G"],
    "preflight": ["0", "0:00", "soon", "1:", "no,must", "0,must", "1,", "1,may", "must", "1,must,must"],
    "movable": ["x", "1:2:3:4", "-1", "1 "],
    "retry": ["", "101", "never", "-1", "1x"],
    "on-hang": ["", "kill", "requeue,tell"],
}
FLAGS = list(RIGHT)


class Option(ctypes.Structure):
    """The head of struct berth_option; only the name is read here."""

    _fields_ = (("name", ctypes.c_char_p),)


def option(name: str) -> ctypes.c_void_p:
    entry = f"_SLURM_SPANK_OPTION_berth_{name.replace('-', '_')}=x".encode()
    value = ctypes.c_char_p()
    found = library().option_in_env(entry, b"", ctypes.byref(value))
    assert found, f"no flag {name}"
    return ctypes.c_void_p(found)


@pytest.mark.parametrize("name", FLAGS)
def test_right_values_pass(name: str) -> None:
    for value in RIGHT[name]:
        assert library().option_value_ok(option(name), value.encode()), value


@pytest.mark.parametrize("name", FLAGS)
def test_wrong_values_do_not(name: str) -> None:
    for value in [*WRONG[name], "9" * 300]:
        assert not library().option_value_ok(option(name), value.encode()), value


def test_the_table_has_the_flags_of_the_formats_page_and_no_others() -> None:
    count = ctypes.c_size_t.in_dll(library(), "berth_option_count").value
    assert count == len(FLAGS)


@pytest.mark.parametrize("prefix", ["", "SLURM_SPANK_"])
def test_a_flag_is_found_in_an_environment(prefix: str) -> None:
    value = ctypes.c_char_p()
    entry = f"{prefix}_SLURM_SPANK_OPTION_berth_gpu_share=30".encode()
    found = library().option_in_env(entry, prefix.encode(), ctypes.byref(value))
    assert Option.from_address(found).name == b"gpu-share"
    assert value.value == b"30"


def test_slurms_text_for_a_flag_without_value_is_no_value() -> None:
    value = ctypes.c_char_p()
    assert library().option_in_env(b"_SLURM_SPANK_OPTION_berth_movable=(null)", b"", ctypes.byref(value))
    assert value.value == b""


@pytest.mark.parametrize(
    "entry",
    [b"_SLURM_SPANK_OPTION_pyxis_movable=1", b"_SLURM_SPANK_OPTION_berth_movables=1",
     b"_SLURM_SPANK_OPTION_berth_movable", b"PATH=/bin", b""],
)  # fmt: skip
def test_other_entries_carry_no_flag(entry: bytes) -> None:
    value = ctypes.c_char_p()
    assert not library().option_in_env(entry, b"", ctypes.byref(value))
