"""Data options in words: what an option accepts, and how it is written after `--set`."""

import json
import shlex
import types
from collections.abc import Mapping, Sequence
from typing import Any, Union, get_args, get_origin

_NEED_QUOTES = set("\"' $\\`;&|<>()*?!#~")
_EXAMPLES: dict[Any, tuple[str, Any]] = {
    bool: ("true or false", None),
    int: ("a whole number", 10),
    tuple[int, int]: ("two whole numbers", (64, 128)),
    tuple[int, ...]: ("one per axis", (64, 128)),
    tuple[float, float]: ("two numbers", (-1000, 400)),
    Sequence[str]: ("a list of names", ("background", "lesion")),
    tuple[float, float, float]: ("three numbers", (2.5, 0.7, 0.7)),
    Mapping[str, str]: ("a text file per split", {"val": "val.txt", "test": "test.txt"}),
    Mapping[str, tuple[int, int]]: ("first and end per split", {"train": (0, 16), "val": (16, 18)}),
}
_EXAMPLES_BY_NAME: dict[str, tuple[str, Any]] = {
    "graders": ("a list of patterns", ("{name}_1.png", "{name}_2.png")),
    "patient": ("a regular expression with one group", r"Image_(\d+)"),
}


def describe_option(name: str, annotation: Any) -> str:
    """What an option of this type accepts: "two whole numbers, for instance size=[64,128]"."""
    is_union = get_origin(annotation) in (Union, types.UnionType)
    kinds = [kind for kind in (get_args(annotation) if is_union else (annotation,)) if kind is not type(None)]
    found = [_EXAMPLES_BY_NAME.get(name) or _EXAMPLES.get(kind, ("a value", None)) for kind in kinds]
    wanted = " or ".join(words for words, _ in found)
    example = found[-1][1]
    return wanted if example is None else f"{wanted}, for instance {' '.join(_assignments(name, example))}"


def to_toml(value: Any) -> str:
    """A value as it is written after --set; None is "none"."""
    return "none" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def set_arguments(name: str, value: Any) -> str:
    """The `--set` arguments of a command line that set an option."""
    words = [shlex.quote(text) if set(text) & _NEED_QUOTES else text for text in _assignments(name, value)]
    return " ".join(f"--set {text}" for text in words)


def _assignments(name: str, value: Any) -> list[str]:
    """`name=value`, or one assignment per entry of a mapping."""
    parts = {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, Mapping) else {name: value}
    return [f"{key}={to_toml(part)}" for key, part in parts.items()]
