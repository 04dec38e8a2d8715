"""Figures of examples of every kind, and how label maps are painted."""

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from test_examples import arrays_of, examples_of, saved

from hpunet.reports import example_figures as report_examples
from hpunet.reports.example_figures import (
    draw_deviations,
    draw_extrapolation,
    draw_instances,
    draw_samples,
    draw_scales,
    hardest_first,
    shown_in_samples,
)
from hpunet.reports.examples import Examples, read_examples
from hpunet.utils.label_painter import PALETTE, paint_image
from hpunet.utils.pictures import stretched

pytest.importorskip("matplotlib")
from hpunet.reports.layout import as_png, as_svg

FIGURES: dict[str, tuple[Callable[[Examples], Any], dict[str, bool], str]] = {
    "samples": (draw_samples, {}, "image, ground truth, reconstruction, sample 4, a/0, b/1, id 2, road, not counted"),
    "scales": (
        partial(draw_scales, several=True),
        {},
        "prior mean, std. dev., all, global, local, standard deviation, 0.5",
    ),
    "instances": (
        partial(draw_instances, hardest=True),
        {"instances": True},
        "true instances, clustering, enlarged, a/0 – Rand error 0.250, b/1 – Rand error 0.750",
    ),
    "extrapolation": (
        draw_extrapolation,
        {"extrapolated": True},
        "whole image, visible part, visible labels, sample 1, hidden",
    ),
}


def texts_of(figure: Any) -> list[str | None]:
    root = ElementTree.fromstring(as_svg(figure))
    return [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("what", FIGURES)
def test_figures_show_pictures_and_say_what_they_are(tmp_path: Path, what: str) -> None:
    draw, kind, words = FIGURES[what]
    drawn = draw(examples_of(tmp_path, **kind))
    picture = np.asarray(Image.open(io.BytesIO(as_png(drawn, dpi=40))).convert("RGB"))
    assert (picture != 255).any(axis=2).mean() > 0.2
    assert all((picture == colour).all(axis=2).any() for colour in PALETTE[1:3])
    assert (picture[[0, -1]] == 255).all()  # nothing runs over the edge
    assert (picture[:, [0, -1]] == 255).all()
    assert as_svg(drawn) == as_svg(drawn)
    assert set(words.split(", ")) <= set(texts_of(drawn))


def test_draw_samples_names_every_map_of_every_example(tmp_path: Path) -> None:
    texts = texts_of(draw_samples(examples_of(tmp_path)))
    assert [texts.count(f"sample {number}") for number in range(1, 5)] == [2, 2, 2, 2]
    assert (texts.count("ground truth"), texts.count("reconstruction")) == (2, 2)


def maps_shown(monkeypatch: pytest.MonkeyPatch, draw: Callable[[], Any]) -> dict[str, np.ndarray]:
    """The maps with a colour bar that a figure shows, by title, of its first example."""
    shown: dict[str, np.ndarray] = {}
    cell = report_examples._cell

    def note(examples: Examples, i: int, pixels: np.ndarray, title: str, **how: bool) -> Any:
        if pixels.ndim == 2:
            shown.setdefault(title, pixels)
        return cell(examples, i, pixels, title, **how)

    monkeypatch.setattr(report_examples, "_cell", note)
    draw()
    return shown


def test_draw_deviations_shows_all_scales_and_each_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = examples_of(tmp_path)
    shown = maps_shown(monkeypatch, lambda: draw_deviations(examples, scales=[0, 1, 3]))
    assert list(shown) == ["all scales", "only scale 0", "only scale 1", "only scale 3"]
    for pixels, number in zip(shown.values(), (0, 1, 2, 4), strict=True):
        assert (pixels == examples.std[0, number]).all()


def lesion_arrays() -> dict[str, np.ndarray]:
    """Two classes at 128×128: a short line is marked in the first image, a line of half its side in the second."""
    arrays = {name: array for name, array in arrays_of().items() if name not in ("stochastic_classes", "class_names")}
    shapes = {name: (*array.shape[:-2], 128, 128) for name, array in arrays.items() if array.ndim > 2}
    arrays |= {name: np.zeros(shape, dtype=arrays[name].dtype) for name, shape in shapes.items()}
    arrays["samples_local"][0, 2, 60:66, 90] = arrays["labels"][1, 0, 30:94, 30] = 1
    arrays["std"][0, 0] = np.arange(128) / 512
    return arrays | {"stochastic_classes": np.array([1]), "class_names": np.array(["background", "lesion"])}


def test_figures_of_a_class_enlarge_the_part_that_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = read_examples(saved(tmp_path / "x.npz", lesion_arrays()))
    shown = maps_shown(monkeypatch, lambda: draw_deviations(examples, scales=[0, 1, 2]))
    assert (shown["all scales"] == examples.std[0, 0, 51:75, 78:102]).all()
    sheets: list[Any] = []
    monkeypatch.setattr(report_examples, "draw_sheet", sheets.append)
    draw_samples(examples)
    images = [line.cells[0] for line in sheets[0].lines if line.cells[0]]
    assert [image.box for image in images] == [(51, 78, 24, 24), None]


def test_draw_deviations_shows_that_of_the_graders_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = arrays_of()
    arrays |= {name: np.repeat(arrays[name], 3, axis=1) for name in ("labels", "reconstructions", "graders")}
    arrays["labels"][0, :, 0, 0] = (2, 1, 3)  # 2 and 3 are stochastic
    arrays["graders"][0, 2] = False
    examples = read_examples(saved(tmp_path / "x.npz", arrays))
    shown = maps_shown(monkeypatch, lambda: draw_deviations(examples, scales=[0, 1, 2]))
    assert shown["graders"][0, 0] == 0.5


def test_draw_instances_takes_the_hardest_first(tmp_path: Path) -> None:
    examples = examples_of(tmp_path, instances=True)
    assert hardest_first(examples) == [1, 0]
    svg = as_svg(draw_instances(examples, hardest=True)).decode()
    assert svg.index("b/1") < svg.index("a/0")
    assert hardest_first(examples_of(tmp_path)) == []


def many(number: int, **more: np.ndarray) -> dict[str, np.ndarray]:
    """Examples called 00, 01 and so on, so wide that six fit a page."""
    arrays = {
        name: array if name in ("stochastic_classes", "class_names") else np.concatenate([array] * (number // 2))
        for name, array in arrays_of().items()
    }
    arrays = {name: array[..., :2, :] if array.ndim > 2 else array for name, array in arrays.items()}
    return arrays | {"keys": np.array([f"{i:02d}" for i in range(number)])} | more


def test_figures_show_examples_spread_over_the_set(tmp_path: Path) -> None:
    # The last eight of 20 were saved for their hardness alone.
    chosen = {"is_hardest": np.arange(20) % 3 == 0, "is_spread": np.arange(20) < 12}
    for arrays in (many(12), many(20, **chosen)):
        assert shown_in_samples(read_examples(saved(tmp_path / "many.npz", arrays))) == [0, 2, 4, 7, 9, 11]


def test_figures_leave_dollars_in_names_alone(tmp_path: Path) -> None:
    arrays = arrays_of() | {"keys": np.array(["$a_{", "x" * 200])}
    examples = read_examples(saved(tmp_path / "x.npz", arrays))
    svg = as_svg(draw_samples(examples)).decode()
    assert "$a_{" in svg
    assert "x" * 100 not in svg  # shortened


def test_figures_stretch_the_whole_image_and_not_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[np.ndarray] = []
    monkeypatch.setattr(report_examples, "paint_image", lambda image: seen.append(image) or paint_image(image))
    arrays = arrays_of(instances=True)
    arrays["image"] = arrays["image"] * np.float32(0.1)
    draw_instances(read_examples(saved(tmp_path / "x.npz", arrays)))
    whole, part = seen[:2]
    assert (whole == stretched(arrays["image"][0])).all()
    assert part.size < whole.size
    assert np.isin(part, whole).all()
