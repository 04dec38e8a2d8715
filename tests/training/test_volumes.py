"""Runs on volumes, from settings to scores: whole volumes or slices as the model needs, resume, `hpunet init`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_run import PUNET, tiny_settings
from typer.testing import CliRunner

from hpunet.cli.main import app
from hpunet.config.settings import load_settings
from hpunet.data.open import adapt_options, open_data, options_of_model
from hpunet.data.packs import open_pack, write_pack
from hpunet.data.synthetic.writers import write_volumes
from hpunet.errors import ConfigError, DataError
from hpunet.evaluation import summary as evaluation_summary
from hpunet.training.loggers import LOG_FILE, read_log
from hpunet.training.loop import train
from hpunet.training.patches import choose_patch
from hpunet.training.state import Training
from hpunet.training.validation import Validation
from hpunet.weights.checkpoints import latest_checkpoint

CPU = torch.device("cpu")
SET = "synthetic:nodules3d"
OPTIONS = {"num_images": 6, "size": [4, 16, 16]}
VOLUMES = (
    *("model.ndim=3", "model.strides=[[1,2,2]]", "data.crop=[4,16,16]"),
    *("data.options.size=[4,16,16]", "data.options.num_images=6", "optimiser.batch_size=2"),
    *("optimiser.iterations=4", "logging.checkpoint_every=2", "logging.validate_every=2"),
)
SLICES = (*(each for each in VOLUMES if not each.startswith(("model", "data.crop"))), "data.crop=[16,16]")


def quietly(settings: Any, *, run: Path, data: str = SET, **how: Any) -> dict[str, float]:
    return train(settings, data=data, run=run, device=CPU, say=lambda _line: None, **how)


def invoke(*arguments: Any) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Packs of volumes and of their slices."""
    folder = tmp_path_factory.mktemp("packs")

    def packed(ndim: int) -> Path:
        options = {**OPTIONS, "volumes": ndim == 3}
        splits = {split: open_data(SET, split=split, options=options) for split in ("train", "val")}
        return write_pack(splits, folder / str(ndim), options=options)

    return {ndim: packed(ndim) for ndim in (2, 3)}


@pytest.mark.parametrize("kind", [(), PUNET], ids=["hpu", "punet"])
def test_a_run_on_volumes_resumes_to_the_bit_and_is_scored(
    kind: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation_summary, "NUM_BOOTSTRAPS", 50)
    settings, whole, halves = tiny_settings(*VOLUMES, *kind), tmp_path / "whole", tmp_path / "halves"
    final = quietly(settings, run=whole)
    assert np.isfinite(list(final.values())).all()
    quietly(tiny_settings(*VOLUMES, *kind, "optimiser.iterations=2"), run=halves)
    quietly(settings, run=halves, resume=True)
    ends = [found for run in (whole, halves) if (found := latest_checkpoint(run / "checkpoints"))]
    assert len(ends) == 2
    tensors = [{f"{a}.{b}": t for a, part in end.tensors.items() for b, t in part.items()} for end in ends]
    assert tensors[0].keys() == tensors[1].keys()
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])
    losses = [[line["loss"] for line in read_log(run / LOG_FILE) if "loss" in line] for run in (whole, halves)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 4
    assert (whole / "verdict.txt").read_text()
    if kind:
        return
    assert "1 test volume" in invoke(
        "evaluate", whole, "--data", SET, "--split", "test", "--samples", 2, "--limit", 1
    )
    (summary,) = whole.glob("evaluation/*/summary.json")
    found = json.loads(summary.read_text())
    assert found["ndim"] == 3
    assert np.isfinite(found["volume_crps"]["mean"])


def test_a_model_of_images_gets_the_slices_and_keeps_that(tmp_path: Path) -> None:
    quietly(tiny_settings(*SLICES), run=tmp_path)
    options = json.loads((tmp_path / "settings.json").read_text())["data"]["options"]
    assert options["volumes"] is False
    (packed,) = tmp_path.glob("data-*")
    pack = open_pack(packed, split="train")
    assert pack.sizes == [(16, 16)] * 24
    scored = adapt_options(SET, kind="synthetic-nodules3d", options=options)
    assert open_data(SET, split="test", options=scored).info.ndim == 2


@pytest.mark.parametrize(
    ("where", "ndim", "given", "expected"),
    [
        (SET, 3, {}, {}),
        (SET, 3, {"volumes": True}, {"volumes": True}),
        (SET, 2, {}, {"volumes": False}),
        ("synthetic:lesions", 2, {"size": 32}, {"size": 32}),
        ("folder", 3, {}, {"volumes": True}),
        ("folder", 2, {}, {}),
    ],
)
def test_options_say_volumes_where_the_model_needs_other_than_usual(
    where: str, ndim: int, given: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    if where == "folder":
        write_volumes(tmp_path / "folder", num_volumes=1, size=(4, 16, 16))
        where = str(tmp_path / "folder")
    assert options_of_model(where, given, ndim=ndim) == expected
    assert adapt_options(where, kind="else", options={}, changes=given, ndim=ndim) == expected


def test_data_of_the_other_kind_are_refused_with_what_to_do(packs: dict[int, Path], tmp_path: Path) -> None:
    for where, given, ndim, words in (
        ("synthetic:lesions", {}, 3, "computes volumes, but synthetic:lesions is read as images; choose other data"),
        (SET, {"volumes": False}, 3, "is read as images; set volumes=true"),
        (SET, {"volumes": True}, 2, "is read as volumes; set volumes=false"),
        (str(packs[2]), {}, 3, "is read as images; choose other data, or a preset for images"),
        (str(packs[3]), {}, 2, "is read as volumes; choose other data, or a preset for volumes"),
    ):
        with pytest.raises(ConfigError, match=words):
            options_of_model(where, given, ndim=ndim)
    with pytest.raises(ConfigError, match=r"^model.ndim: 2, .* is read as volumes"):
        quietly(tiny_settings(*SLICES), run=tmp_path / "a", data=str(packs[3]))
    data = tmp_path / "images"
    for folder in ("images", "masks"):
        (data / folder).mkdir(parents=True)
        for name in ("a", "b"):
            Image.fromarray(np.zeros((16, 16), np.uint8)).save(data / folder / f"{name}.png")
    settings = tiny_settings(*VOLUMES)
    settings = settings.model_copy(update={"data": settings.data.model_copy(update={"options": {}})})
    with pytest.raises(DataError, match=r"\.png: expected a volume .* for volumes=true, as for model.ndim=3"):
        quietly(settings, run=tmp_path / "b", data=str(data))


def test_validation_scores_as_many_voxels_as_in_crops(packs: dict[int, Path], tmp_path: Path) -> None:
    settings = tiny_settings(*VOLUMES, "data.crop=[2,8,16]", "logging.validate_images=6")
    training = Training(settings, pack_path=packs[3], run=tmp_path, device=CPU)
    pack = open_pack(packs[3], split="val")
    validation = Validation(training.model, pack=pack, settings=settings, device=CPU, run=tmp_path)
    assert len(validation.indices) == 4
    assert validation.note.startswith(
        "validation scores 4 whole volumes instead of 6: as many voxels as in 6 crops of"
    )


def test_activation_checkpointing_and_bfloat16_train_on_volumes(packs: dict[int, Path], tmp_path: Path) -> None:
    def loss(*changes: str, autocast: bool = False) -> float:
        settings = tiny_settings(*VOLUMES, *changes)
        training = Training(settings, pack_path=packs[3], run=tmp_path, device=CPU)
        if autocast:
            training.train_step.autocast = lambda: torch.autocast("cpu", dtype=torch.bfloat16)
        terms, norm = next(training.run_steps())
        assert norm.isfinite()
        return float(terms.loss)

    plain = loss()
    assert loss("model.activation_checkpointing=true") == pytest.approx(plain, rel=1e-6)
    assert loss(autocast=True) == pytest.approx(plain, rel=0.02)


@pytest.mark.parametrize(
    ("smallest", "spacing", "patch", "strides"),
    [
        ((16, 64, 64), (2.0, 0.8, 0.8), (16, 64, 64), [(1, 2, 2), (2, 2, 2), (2, 2, 2), (1, 2, 2)]),
        ((160, 250, 250), None, (96, 96, 96), [(2, 2, 2)] * 5),
        ((30, 512, 512), (5.0, 0.7, 0.7), (24, 160, 192), [(1, 2, 2)] * 3 + [(2, 2, 2)] * 2),
        ((12, 300, 300), (50.0, 0.4, 0.4), (10, 288, 288), [(1, 2, 2)] * 4 + [(2, 2, 2)]),
        ((1, 64, 64), None, (1, 64, 64), [(1, 2, 2)] * 4),
    ],
)
def test_patches_follow_spacing(
    smallest: tuple[int, ...], spacing: Any, patch: tuple[int, ...], strides: list[tuple[int, ...]]
) -> None:
    found = choose_patch(smallest, spacing=spacing)
    assert (found.size, found.strides) == (patch, strides)
    shrunk = np.prod(strides, axis=0)
    assert not (np.array(patch) % shrunk).any()
    assert found.grids()[0] == tuple(np.array(patch) // shrunk)
    assert choose_patch(smallest, spacing=spacing, max_voxels=4096).positions <= 4096


def test_patches_need_slices_of_some_size() -> None:
    with pytest.raises(DataError, match="the smallest slice has a side of 6 pixels; at least 8"):
        choose_patch((20, 6, 30), spacing=None)


def test_what_init_writes_for_volumes_trains(tmp_path: Path) -> None:
    data, file, run = tmp_path / "data", tmp_path / "lab.toml", tmp_path / "run"
    invoke("data", "make", "nifti", data, "--count", 4, "--size", 16)
    how = ("--data", data, "--out", file)
    assert "4 training and 4 validation volumes" in " ".join(invoke("init", *how, "--small", "--volumes").split())
    text = file.read_text()
    assert "Spacing is 2×0.8×0.8 mm" in text
    settings = load_settings(str(file))
    assert (settings.model.ndim, settings.data.crop, settings.data.options["volumes"]) == (3, (4, 16, 16), True)
    assert settings.model.strides == [(1, 2, 2), (2, 2, 2)]
    tiny = ("optimiser.iterations=1", "optimiser.batch_size=2", "logging.validate_samples=2")
    assert np.isfinite(list(quietly(load_settings(str(file), tiny), run=run, data=str(data)).values())).all()
    invoke("init", *how, "--replace")
    assert load_settings(str(file)).model.ndim == 2  # slices, unless asked otherwise
