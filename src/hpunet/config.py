"""Settings from the command line: `a.b=value` assignments, their values written as in TOML."""

import tomllib
from collections.abc import Iterable
from typing import Any

from hpunet.errors import ConfigError


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """['size=128', 'slices.train=[0, 16]'] as {'size': 128, 'slices': {'train': [0, 16]}}.

    A value that is no TOML value (a bare word) is a string.
    """
    settings: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            raise ConfigError(f"{assignment!r}: expected name=value, for instance size=128 or slices.train=[0,16]")
        place = settings
        for part in parts[:-1]:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{key}: {part} already has a value of its own")
        place[parts[-1]] = _value(text.strip())
    return settings


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
