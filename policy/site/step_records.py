"""The files of step times: the record, its older part, and the table of living scores beside it."""

from pathlib import Path


def records_of(record: Path) -> tuple[Path, ...]:
    """The files of a record, the older one first."""
    return tuple(one for one in (record.with_name(f"{record.name}.1"), record) if one.exists())


def place_of(steps: Path) -> Path:
    """Returns where the living table of a record is."""
    return steps.with_name(f"{steps.name}.scores")
