"""Files of example images: what is read back, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpunet.errors import DataError
from hpunet.reports.examples import Examples, read_examples

B, H, W = 2, 6, 8


def arrays_of(*, instances: bool = False, extrapolated: bool = False) -> dict[str, np.ndarray]:
    """Examples with four classes, of which 2 and 3 are stochastic."""
    rng = np.random.default_rng(0)
    maps = rng.integers(4, size=(B, 4, H, W)).astype(np.uint8)
    std = rng.uniform(0, 0.5, (B, 5, H, W)).astype(np.float32)
    arrays = {
        "image": rng.random((B, 3, H, W), dtype=np.float32),
        "labels": maps[:, :1],
        "graders": np.ones((B, 1), dtype=np.bool_),
        "valid": rng.random((B, H, W)) > 0.1,
        "keys": np.array(["a/0", "b/1"]),
        "prior_mean": maps[:, 1],
        "reconstructions": maps[:, :1],
        **{f"samples_{way}": maps for way in ("full", "global", "local")},
        "std": std,
        "stochastic_classes": np.array([2, 3]),
        "class_names": np.array(["road", "tree", "id 1", "id 2"]),
    }
    if instances:
        arrays |= {"true_instances": maps[:, 2].astype(np.int32), "instances": maps[:, 3].astype(np.int32)}
        arrays |= {"hardness": np.array([0.25, 0.75]), "hardness_metric": np.array("rand_error")}
    if extrapolated:
        arrays["visible"] = np.broadcast_to(np.arange(W) < 5, (B, H, W))
    return arrays


def saved(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    return path


def examples_of(tmp_path: Path, **kind: Any) -> Examples:
    return read_examples(saved(tmp_path / "examples.npz", arrays_of(**kind)))


def test_read_examples_gives_back_what_was_saved(tmp_path: Path) -> None:
    arrays = arrays_of(instances=True, extrapolated=True)
    found = read_examples(saved(tmp_path / "examples.npz", arrays | {"of_others": np.zeros(3)}))
    assert (found.samples["local"] == arrays["samples_local"]).all()
    for name in ("std", "image", "labels", "prior_mean", "true_instances", "instances", "hardness", "visible"):
        assert np.array_equal(getattr(found, name), arrays[name])
    assert (found.keys, found.hardness_metric) == (["a/0", "b/1"], "rand_error")
    assert found.stochastic_classes == [2, 3]


def test_read_examples_does_without_the_groups_that_may_be_missing(tmp_path: Path) -> None:
    core = ("image", "labels", "graders", "valid", "keys", "reconstructions", "samples_full")
    path = saved(tmp_path / "few.npz", {name: arrays_of()[name] for name in core})
    found = read_examples(path)
    assert (found.std, found.prior_mean, found.instances, found.visible) == (None, None, None, None)
    assert list(found.samples) == ["full"]
    assert list(found.stochastic_classes) == [1, 2, 3]
    assert found.class_names == ["class 0", "class 1", "class 2", "class 3"]
    told = read_examples(path, same_classes=examples_of(tmp_path))
    assert (told.stochastic_classes, told.class_names[0]) == ([2, 3], "road")


REFUSED: dict[str, tuple[str, np.ndarray | None, str]] = {
    "half of the scales": ("samples_global", None, "lacks samples_global"),
    "half of the choice": ("is_hardest", np.ones(B, np.bool_), "lacks is_spread"),
    "half of the instances": ("instances", None, "lacks instances"),
    "hardness without its name": ("hardness_metric", None, "lacks hardness_metric"),
    "classes without names": ("class_names", None, "lacks class_names"),
    "no samples": ("samples_full", np.zeros((B, 0, H, W), np.uint8), "samples_full: expected whole numbers"),
    "visible orient": ("visible", np.ones((B, W, H), np.bool_), r"visible: expected booleans \(b=2 h=6 w=8\)"),
    "instances of floats": ("instances", np.zeros((B, H, W)), "instances: expected whole numbers"),
    "negative labels": ("labels", np.full((B, 1, H, W), -1), "labels: .*found -1"),
    "hardness too short": ("hardness", np.zeros(1), r"hardness: expected floats \(b=2\)"),
    "image not finite": ("image", np.full((B, 3, H, W), np.nan), "image: holds values that are not finite"),
    "class without a name": ("stochastic_classes", np.array([2, 9]), "class_names .* 4"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_read_examples_refuses_in_one_line_that_names_file_and_array(tmp_path: Path, what: str) -> None:
    name, array, expected = REFUSED[what]
    arrays: dict[str, Any] = {**arrays_of(instances=True, extrapolated=True), name: array}
    path = saved(tmp_path / "bad.npz", {n: a for n, a in arrays.items() if a is not None})
    with pytest.raises(DataError, match=rf"bad\.npz: .*{expected}") as caught:
        read_examples(path)
    assert "\n" not in str(caught.value)
