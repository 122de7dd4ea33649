import pytest

from policy.formats.errors import ConfigError
from policy.site.config import load


def test_the_order_is_slurms_alone(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "berth.conf"
    for line in ('order = "size"', "order_weight = 300"):
        path.write_text(f"[berthd]\n{line}\n")
        with pytest.raises(ConfigError, match=r"\[berthd\] order(_weight)? is gone; give PriorityWeightJobSize"):
            load(path)
