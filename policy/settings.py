"""What the site decides about places; light enough for every command that reads berth.conf."""

from dataclasses import dataclass

from policy.locality import SizeRule


@dataclass(frozen=True, slots=True)
class Settings:
    """The plan's part of berth.conf."""

    locality_wait: int = 600
    locality_rules: tuple[SizeRule, ...] = ()
    locality_cap: int | None = None
    repin: bool = True
    most_moves: int = 50
    """Updates in one pass: each takes slurmctld's write locks."""
