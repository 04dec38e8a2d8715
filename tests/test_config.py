import pytest

from hpunet.config import parse_assignments
from hpunet.errors import ConfigError


def test_assignments_are_toml_values_or_words() -> None:
    found = parse_assignments(["size=128", "slices.train=[0, 16]", "slices.val=[16,18]", "name=nuclei", "on = true"])
    assert found == {"size": 128, "slices": {"train": [0, 16], "val": [16, 18]}, "name": "nuclei", "on": True}


@pytest.mark.parametrize("wrong", ["size", "=3", "a..b=1", ".a=1"])
def test_assignments_that_are_none_are_named(wrong: str) -> None:
    with pytest.raises(ConfigError, match="expected name=value"):
        parse_assignments([wrong])


def test_assignments_do_not_overwrite_a_value_by_a_group() -> None:
    with pytest.raises(ConfigError, match="a already has a value"):
        parse_assignments(["a=1", "a.b=2"])
