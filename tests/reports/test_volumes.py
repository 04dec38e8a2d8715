"""Examples of volumes: what is read back, what is refused, and what figures and pages show of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_examples import saved

from hpunet.errors import DataError
from hpunet.reports.contents import example_drawings
from hpunet.reports.examples import Examples, read_examples
from hpunet.reports.page import evaluations_table
from hpunet.reports.saved_run import VOLUME_NOTE, read_evaluation

B, R, S, D, H, W = 2, 2, 4, 6, 64, 64
SPACING, POSITION = (2.0, 1.0, 1.0), ((2, 20, 31), (5, 50, 8))
PLANES = {"": (H, W), "coronal_": (D, W), "sagittal_": (D, H)}


def volume_arrays(*, instances: bool = False, num_classes: int = 2) -> dict[str, np.ndarray]:
    """Two volumes in which a voxel and its neighbours are marked; the std is the place along the picture."""
    found: dict[str, np.ndarray] = {
        "graders": np.ones((B, R), dtype=np.bool_),
        "keys": np.array(["a", "b"]),
        "position": np.array(POSITION),
        "spacing": np.array(SPACING),
        "stochastic_classes": np.arange(1, num_classes),
        "class_names": np.array([f"c{i}" for i in range(num_classes)]),
    }
    maps = {"image": (1,), "labels": (R,), "reconstructions": (R,), "valid": (), "prior_mean": (), "std": (4,)}
    maps |= {f"samples_{way}": (S,) for way in ("full", "global", "local")}
    maps |= {"instances": (), "true_instances": ()} if instances else {}
    volumes = {}
    for name, numbers in maps.items():
        kind = {"image": np.float32, "std": np.float32, "valid": np.bool_}.get(name, np.uint8)
        volumes[name] = np.zeros((B, *numbers, D, H, W), dtype=kind)
        for i, (z, y, x) in enumerate(POSITION):
            volumes[name][i, ..., z, y, x] = 1
    volumes["valid"][:] = True
    volumes["image"][:] = np.linspace(0.2, 0.9, W)
    volumes["std"][:] = np.arange(W) / 256
    for name, volume in volumes.items():
        parts = [
            [volume[i, ..., z, :, :], volume[i, ..., :, y, :], volume[i, ..., :, :, x]]
            for i, (z, y, x) in enumerate(POSITION)
        ]
        found |= {plane + name: np.stack(each) for plane, each in zip(PLANES, zip(*parts, strict=True), strict=True)}
    return found


def examples_of(tmp_path: Path, **kind: Any) -> Examples:
    return read_examples(saved(tmp_path / "examples.npz", volume_arrays(**kind)))


def test_maps_of_volumes_are_read_as_pictures_of_three_planes(tmp_path: Path) -> None:
    found = examples_of(tmp_path, num_classes=3)
    assert found.blank is not None
    assert found.cuts is not None
    gap = 2
    height = width = H + gap + 2 * D
    assert found.image.shape == (B, 1, height, width)
    assert found.samples["local"].shape == (B, S, height, width)
    for i, (z, y, x) in enumerate(POSITION):
        assert found.labels[i, 0].sum() == 1 + 2 + 2  # slices are twice as thick as pixels
        assert found.labels[i, 1, y, x] == 1
        (row, below), (column, beside) = found.cuts[i]
        assert (row, column) == (y, x)
        assert {int(found.labels[i, 0, below, x]), int(found.labels[i, 0, y, beside])} == {1}
        assert below // 2 == (H + gap + 2 * z) // 2
    assert found.valid.all()
    assert found.blank.sum() == height * width - H * W - 2 * D * (H + W)


def test_planes_of_one_class_are_shown_around_what_is_marked(tmp_path: Path) -> None:
    found = examples_of(tmp_path)
    assert found.blank is not None
    side, depth, gap = 24, D, 2  # the least that is shown; of slices all
    assert found.blank.shape == (side + gap + 2 * depth,) * 2
    assert found.std is not None
    for i, (_, y, x) in enumerate(POSITION):
        start = min(max(0, x - 12), W - side)
        assert (found.std[i, 0, 0, :side] * 256 == start + np.arange(side)).all()
        assert found.labels[i, 0, y - min(max(0, y - 12), H - side), x - start] == 1
    assert examples_of(tmp_path, instances=True).blank.shape[0] > 64  # type: ignore[union-attr]


REFUSED: dict[str, tuple[str, np.ndarray | None, str]] = {
    "one plane": ("sagittal_std", None, "lacks sagittal_std"),
    "no spacing": ("spacing", None, "lacks spacing"),
    "no position": ("position", None, "lacks position"),
    "other depth": ("coronal_valid", np.ones((B, D + 1, W), np.bool_), "coronal_"),
    "other count": ("coronal_samples_full", np.zeros((B, 3, D, W), np.uint8), "not as many maps as samples_full"),
    "outside": ("position", np.array([(0, 0, 0), (D, 0, 0)]), "position, spacing"),
    "no thickness": ("spacing", np.array([0.0, 1, 1]), "position, spacing"),
    "not a number": ("spacing", np.array([np.nan, 1, 1]), "spacing: holds values that are not finite"),
    "turned": ("sagittal_labels", np.zeros((B, R, H, D), np.uint8), "sagittal_"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_planes_that_do_not_fit_are_refused(tmp_path: Path, what: str) -> None:
    name, array, expected = REFUSED[what]
    arrays: dict[str, Any] = {**volume_arrays(), name: array}
    path = saved(tmp_path / "bad.npz", {n: a for n, a in arrays.items() if a is not None})
    with pytest.raises(DataError, match=rf"bad\.npz: .*{expected}"):
        read_examples(path)


def test_long_pictures_of_a_small_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpunet.reports.examples.MAX_UNPACKED_BYTES", 2**20)
    examples_of(tmp_path)
    arrays = volume_arrays() | {"spacing": np.array([1e6, 1.0, 1.0])}
    with pytest.raises(DataError, match="pictures"):
        read_examples(saved(tmp_path / "long.npz", arrays))


def test_figures_of_volumes_say_that_they_show_planes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from hpunet.config.settings import load_settings
    from hpunet.reports.layout import as_png

    settings = load_settings("demo")
    kinds: tuple[dict[str, Any], ...] = ({}, {"instances": True, "num_classes": 3})
    for kind in kinds:
        drawings = example_drawings(examples_of(tmp_path, **kind), of="run", settings=settings, where="volumes")
        assert len(drawings) >= 2
        for drawing in drawings:
            assert "sagittal" in drawing.caption
            assert "{" not in drawing.caption
            assert "enlarged" not in drawing.caption
        assert as_png(drawings[-1].draw(), dpi=30)


def test_tables_of_volumes_say_the_unit_and_what_scores_of_slices_mean(tmp_path: Path) -> None:
    score = {"mean": 0.25, "std": 0.1, "patient_std": 0.1}
    found = {}
    for name, more in {"a": {"ndim": 3, "spacing": [2, 1, 1]}, "b": {"ndim": 3, "spacing": None}, "c": {}}.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "summary.json").write_text(json.dumps({"num_images": 3, "volume_crps": score, **more}))
        found[name] = read_evaluation(folder)
    volumes = evaluations_table({"a": found["a"]})
    assert VOLUME_NOTE in volumes.caption
    assert [row[0] for row in volumes.rows] == ["volumes", "volume_crps (ml)"]
    assert evaluations_table(found).rows[1][0] == "volume_crps (ml, voxels)"
    images = evaluations_table({"c": found["c"]})
    assert (images.rows[0][0], VOLUME_NOTE in images.caption) == ("images", False)
