# SPDX-License-Identifier: Apache-2.0
"""The table [hook] of berth.conf as the plugins read it."""

import ctypes
from pathlib import Path

import pytest

from policy.formats.errors import ConfigError
from policy.site.config import load
from tests.unit.plugin_library import Config, library


def parse(content: str) -> tuple[Config, str]:
    """The configuration, and the sentence about what is wrong ("" when nothing is)."""
    config = Config()
    error = ctypes.create_string_buffer(512)
    ok = library().config_parse(content.encode(), ctypes.byref(config), error)
    return config, "" if ok else error.value.decode()


def settings(config: Config) -> tuple[object, ...]:
    return (
        config.socket, config.deadline_ms, config.breaker_seconds, config.fail_closed,
        config.skip_partitions, config.def_cpu_per_gpu, config.message, config.hook_log,
        config.pinned_file,
    )  # fmt: skip


DEFAULTS = (b"/run/berth/berthd.sock", 50, 5, False, b"", 0, 1, b"", b"/run/berth/pinned")


def test_an_empty_file_is_the_defaults() -> None:
    config, error = parse("")
    assert (settings(config), error) == (DEFAULTS, "")


def test_every_key_is_read_and_other_tables_are_left_alone() -> None:
    config, error = parse(
        "title = 'site'\n"
        '[berthd]\ntopology_dir = "/x"\nlist = [\n  "[hook]",\n]\n'
        "[ hook ]  # ours\n"
        'socket = "/tmp/b.sock" # comment\n deadline_ms=20\r\nbreaker_seconds = 9\n'
        'fail = \'closed\'\nskip_partitions = "debug, cpu"\ndef_cpu_per_gpu = 8\nmessage = "never"\n'
        'hook_log = "/var/log/x # not a comment"\npinned_file = ""\n'
        "[later]\nsocket = 3\n"
    )
    assert error == ""
    assert settings(config) == (
        b"/tmp/b.sock", 20, 9, True, b"debug, cpu", 8, 2, b"/var/log/x # not a comment", b"",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("deadline = 5", ['"deadline"', "deadline_ms"]),
        ("deadline_ms = 0", ["deadline_ms", "1 to 1000"]),
        ("deadline_ms = 1001", ["deadline_ms"]),
        ('deadline_ms = "50"', ["deadline_ms"]),
        ("deadline_ms = 5 5", ["deadline_ms"]),
        ('fail = "maybe"', ["fail", '"closed"']),
        ('skipped_shards = "yes"', ["skipped_shards", '"refuse" or "site"']),
        ("fail = open", ["fail"]),
        ('socket = "relative"', ["socket", "absolute"]),
        (f'socket = "/{"x" * 107}"', ["socket", "107"]),
        ('socket = "/a\\tb"', ["socket"]),
        ('socket = "/a', ["socket"]),
        ('pinned_file = "pinned"', ["pinned_file", "absolute"]),
        ("message = true", ["message"]),
        ("nonsense", ["key = value"]),
        ("deadline_ms = 5\ndeadline_ms = 6", ["twice"]),
    ],
)
def test_a_wrong_line_is_named_and_nothing_of_the_file_is_used(line: str, words: list[str]) -> None:
    config, error = parse(f"[hook]\nbreaker_seconds = 7\n{line}\n")
    assert settings(config) == DEFAULTS
    assert error.startswith(("line 3:", "line 4:"))
    assert all(word in error for word in words), error


@pytest.mark.parametrize("words", ["open|closed", "always|flags|never", "exact|plain", "refuse|site"])
def test_no_beginning_and_no_list_of_words_is_a_word(words: str) -> None:
    key = {"open": "fail", "always": "message", "exact": "layout", "refuse": "skipped_shards"}[words.partition("|")[0]]
    for wrong in ("", words, words[:2], f"{words.partition('|')[0]}|", f"|{words.rpartition('|')[2]}"):
        assert parse(f'[hook]\n{key} = "{wrong}"\n')[1], wrong
    for number, word in enumerate(words.split("|")):
        config, error = parse(f'[hook]\n{key} = "{word}"\n')
        assert (error, getattr(config, {"fail": "fail_closed"}.get(key, key))) == ("", number)


def test_a_missing_file_is_the_defaults_and_an_unreadable_one_is_an_error(tmp_path: Path) -> None:
    config, error = Config(), ctypes.create_string_buffer(512)
    assert library().config_load(str(tmp_path / "none").encode(), ctypes.byref(config), error)
    assert not library().config_load(str(tmp_path).encode(), ctypes.byref(config), error)
    assert str(tmp_path) in error.value.decode()
    assert settings(config) == DEFAULTS


class PreflightConfig(ctypes.Structure):
    """struct preflight_config."""

    _fields_ = (
        ("above", ctypes.c_uint32),
        ("time", ctypes.c_uint32),
        ("wait", ctypes.c_uint32),
        ("partition", ctypes.c_char * 1024),
    )


def preflight(tmp_path: Path, content: str) -> tuple[tuple[object, ...], str]:
    config, error = PreflightConfig(), ctypes.create_string_buffer(512)
    file = tmp_path / "berth.conf"
    file.write_text(content)
    library().config_load_preflight(str(file).encode(), ctypes.byref(config), error)
    return (config.above, config.time, config.wait, config.partition), error.value.decode()


USUAL = (0, 600, 3600, b"")


def test_the_rules_for_preflights_are_read(tmp_path: Path) -> None:
    assert preflight(tmp_path, "") == (USUAL, "")
    text = '[preflight]\nabove = 8\ntime = "1:30"\nwait = "0:30:00"\npartition = "pool,b"\n'
    assert preflight(tmp_path, text) == ((8, 90, 1800, b"pool,b"), "")


@pytest.mark.parametrize(
    "line", ["time = 600", 'time = "0"', 'time = "soon"', 'time = "2-0"', "above = -1", "partition = 1", "until = 3"]
)
def test_a_wrong_rule_leaves_all_of_them_at_their_defaults_and_berthd_says_so(tmp_path: Path, line: str) -> None:
    found, error = preflight(tmp_path, f"[preflight]\nabove = 8\n{line}\n".replace("above = 8\nabove", "above"))
    assert found == USUAL
    assert error
    with pytest.raises(ConfigError, match="preflight"):
        load(tmp_path / "berth.conf")


@pytest.mark.parametrize(
    ("partitions", "skipped"),
    [
        *((b"debug", True), (b"debug, cpu", True), (b"cpu,debug,cpu", True)),
        *((b"gpu,debug", False), (b"cpu,gpu", False), (b"gpu", False), (b"debug2", False)),
        *((b"", False), (b",", False), (None, False)),
    ],
)
def test_a_job_that_may_land_in_any_other_than_skipped_partitions_is_berths(
    partitions: bytes | None, skipped: bool
) -> None:
    config, _ = parse('[hook]\nskip_partitions = "cpu, debug"\n')
    assert library().config_skips(ctypes.byref(config), partitions) == skipped


def test_the_file_lies_beside_slurm_conf_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = ctypes.create_string_buffer(1024)
    monkeypatch.delenv("BERTH_CONF", raising=False)
    assert library().config_path(b"/opt/site/slurm.conf", path)
    assert path.value == b"/opt/site/berth.conf"
    monkeypatch.setenv("BERTH_CONF", "/elsewhere/b.toml")
    assert library().config_path(b"/opt/site/slurm.conf", path)
    assert path.value == b"/elsewhere/b.toml"
    monkeypatch.setenv("BERTH_CONF", "/" + "x" * 1100)
    assert not library().config_path(b"/opt/site/slurm.conf", path)


@pytest.mark.parametrize(("line", "taken"), [("", False), ("refuse", False), ("site", True), ("true", None)])
def test_both_halves_read_alike_whether_shards_may_be_asked_for_where_berth_does_not_look(
    tmp_path: Path, line: str, taken: bool | None
) -> None:
    text = f'[hook]\nskipped_shards = "{line}"\n' if line else ""
    config, error = parse(text)
    conf = tmp_path / "berth.conf"
    conf.write_text(text)
    if taken is None:
        assert "skipped_shards" in error
        with pytest.raises(ConfigError, match="skipped_shards is one of refuse, site"):
            load(conf)
    else:
        assert (config.skipped_shards, load(conf).skipped_shards) == (taken, taken)
