"""Whole images are scored: what lies outside the centre counts, tiles change nothing, sizes may differ."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_run import untrained_model

import hpunet.evaluation.run as evaluation
from hpunet.data.open import open_data
from hpunet.data.synthetic.source import open_synthetic
from hpunet.data.types import Source
from hpunet.errors import DataError
from hpunet.evaluation import examples, images
from hpunet.evaluation.drawn import Maps
from hpunet.evaluation.images import read_item
from hpunet.evaluation.rows import EXAMPLES_FILE, ROWS_FILE, read_rows
from hpunet.evaluation.run import evaluate
from hpunet.evaluation.scorer import Scorer
from hpunet.evaluation.summary import pooled, scored_part
from hpunet.sampling import tiling
from hpunet.sampling.tiling import Tiled


@pytest.fixture(autouse=True)
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpunet.evaluation.summary.NUM_BOOTSTRAPS", 20)
    monkeypatch.setattr(evaluation, "NUM_SHOWN", 2)
    monkeypatch.setattr(evaluation, "NUM_HARDEST", 1)


def photographs(folder: Path, sizes: Sequence[tuple[int, int]], *, lesion: bool = True) -> Source:
    """Colour photographs with a lesion at the upper left, drawn by two graders, or by neither."""
    rng = np.random.default_rng(0)
    for name in ("images", "graders/a", "graders/b"):
        (folder / name).mkdir(parents=True)
    for i, (h, w) in enumerate(sizes):
        Image.fromarray(rng.integers(40, 200, (h, w, 3), dtype=np.uint8)).save(folder / f"images/{i}.png")
        for grader, height in (("a", 9), ("b", 12)):
            marked = np.zeros((h, w), dtype=np.uint8)
            marked[2 : 2 + height * lesion, 2:12] = 1
            Image.fromarray(marked).save(folder / f"graders/{grader}/{i}.png")
    table = ["file,patient,split", *(f"{i},p{i},val" for i in range(len(sizes)))]
    (folder / "data.csv").write_text("\n".join(table) + "\n")
    return open_data(str(folder), split="val")


def scorer_of(source: Source, **changes: Any) -> Scorer:
    how = {"model": untrained_model(source.info), "info": source.info, "crop": None, "num_samples": 3}
    return Scorer(**{**how, **changes})


def maps_of(scorer: Scorer, source: Source, indices: Sequence[int]) -> dict[str, Maps]:
    drawn = scorer.draw(source, [read_item(source, i, source.info) for i in indices])
    return {key: each.maps for each in drawn if each.maps is not None for key in each.maps.keys}


def test_a_lesion_outside_the_centre_counts(tmp_path: Path) -> None:
    marked, empty = (photographs(tmp_path / f"{i}", [(960, 999)], lesion=i == 0) for i in (0, 1))
    for crop, same in ((None, False), ((128, 128), True)):
        found = []
        for source in (marked, empty):
            scorer = scorer_of(source, crop=crop, num_samples=1)
            (maps,) = maps_of(scorer, source, [0]).values()
            assert maps.labels.shape[2:] == (crop or (960, 999))
            scores = scorer.distribution_scores(maps)
            found.append([scores[name].item() for name in ("ged2", "hm_iou", "iou_rec")])
        assert (found[0] == found[1]) == same, crop


def test_tiles_give_the_rows_of_the_whole_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = photographs(tmp_path / "data", [(96, 102), (90, 64)])
    whole = maps_of(scorer_of(source), source, [0, 1])
    monkeypatch.setattr(tiling, "MAX_UNTILED_PIXELS", 0)
    monkeypatch.setattr(tiling, "DEFAULT_TILE", {2: 32})
    scorer = scorer_of(source)
    assert isinstance(scorer.inputs(whole["0"].batch, [0]).network, Tiled)
    tiled = maps_of(scorer, source, [0, 1])
    for key, maps in whole.items():
        assert np.array_equal(maps.labels, tiled[key].labels)
        assert torch.equal(maps.rebuilt, tiled[key].rebuilt)


def test_sizes_may_differ_and_neighbours_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [(40, 48), (48, 40), (33, 31), (40, 48), (40, 48)]
    source = photographs(tmp_path / "data", sizes)
    said: list[str] = []
    contents = []
    for size, pixels in ((1, 2**20), (5, 2**20), (5, 2 * 40 * 48)):
        monkeypatch.setattr(images, "MAX_PIXELS", pixels)
        folder = tmp_path / f"{size}-{pixels}"
        summary = evaluate(scorer_of(source), source=source, folder=folder, batch_size=size, say=said.append)
        assert (summary["crop"], summary["num_images"], summary["num_failed"]) == (None, 5, 0)
        assert scored_part(summary) == scored_part(pooled([summary, summary])) == "whole images"
        contents.append((folder / ROWS_FILE).read_bytes())
    assert contents[0] == contents[1] == contents[2]
    assert set(said) == {"scored whole images of 33×31 to 48×40 pixels"}
    # A second attempt goes on with what the first one has.
    lines = contents[0].splitlines(keepends=True)
    (folder / "rows-0.part.csv").write_bytes(b"".join(lines[:4]))
    (folder / ROWS_FILE).unlink()
    evaluate(scorer_of(source), source=source, folder=folder, say=said.append)
    assert said[-2:] == ["3 of 5 rows are done already", "scored whole images of 40×48 pixels"]
    assert (folder / ROWS_FILE).read_bytes() == contents[0]


def test_examples_of_several_sizes_share_one_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = photographs(tmp_path / "data", [(40, 48), (80, 30), (20, 20)])
    monkeypatch.setattr(examples, "MAX_SIDE", 40)
    evaluate(scorer_of(source), source=source, folder=tmp_path / "rows")
    with np.load(tmp_path / "rows" / EXAMPLES_FILE) as found:
        assert found["image"].shape == (len(found["keys"]), 3, 40, 24)
        valid = dict(zip(found["keys"].tolist(), found["valid"].sum(axis=(1, 2)).tolist(), strict=True))
        assert found["labels"][:, :, 1:5, 1:5].any(axis=(1, 2, 3)).all()
    areas = {"0": 20 * 24, "1": 40 * 15, "2": 20 * 20}
    assert valid == {key: areas[key] for key in valid}


def test_fewer_examples_of_large_images_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = photographs(tmp_path / "data", [(40, 40)] * 5)
    monkeypatch.setattr(evaluation, "NUM_SHOWN", 4)
    for side, number in ((40, {4, 5}), (20, {1, 2})):
        monkeypatch.setattr(evaluation, "MAX_SIDE", side)
        evaluate(scorer_of(source), source=source, folder=tmp_path / f"{side}")
        with np.load(tmp_path / f"{side}" / EXAMPLES_FILE) as found:
            assert len(found["keys"]) in number


def test_instances_of_whole_images_are_those_of_an_equal_crop(tmp_path: Path) -> None:
    source = open_synthetic("streets", split="val", num_images=2, size=(32, 48))
    contents = []
    for crop in (None, (32, 48)):
        folder = tmp_path / str(crop)
        evaluate(scorer_of(source, crop=crop), source=source, folder=folder)
        contents.append((folder / ROWS_FILE).read_bytes())
    assert contents[0] == contents[1]
    assert {"rand_error", "background_iou"} <= set(read_rows(folder / ROWS_FILE)[0].scores)


def test_images_that_do_not_fit_the_memory_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = photographs(tmp_path / "data", [(40, 48)])

    def fail(*_args: Any, **_how: Any) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("hpunet.evaluation.scorer.reconstruct", fail)
    with pytest.raises(DataError, match=r"0: 40x48 pixels do not fit .*--crop"):
        maps_of(scorer_of(source), source, [0])
