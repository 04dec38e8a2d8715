from pathlib import Path

import pytest
import torch
from tiny_run import tiny_settings, write_tiny_pack

import hpunet
from hpunet.errors import CheckpointError, ConfigError, HPUNetError
from hpunet.training.loop import train
from hpunet.weights.checkpoints import load_checkpoint, save_checkpoint
from hpunet.weights.load import load_trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    pack = write_tiny_pack(folder / "pack")
    train(tiny_settings("optimiser.ema_decay=0.5"), data=str(pack), run=folder / "run", say=lambda _: None)
    return folder / "run"


def test_load_gives_the_averaged_weights_and_what_the_data_were(run: Path) -> None:
    found = load_trained(run, device="cpu")
    saved = load_checkpoint(run / "checkpoints" / "step-00000012")
    assert (found.name, found.step, found.info.kind) == ("run", 12, "synthetic-lesions")
    assert (found.info.num_classes, found.info.stochastic_classes) == (2, (1,))
    for name, value in found.model.state_dict().items():
        assert torch.equal(value, saved.tensors["averaged"][name])
    drawn = hpunet.sample(found.model, image=torch.rand(1, 1, 16, 16), num_samples=3)
    assert drawn.labels.shape == (1, 3, 16, 16)
    assert not found.model.training


def test_load_gives_the_raw_weights_when_asked(run: Path) -> None:
    found = load_trained(run, weights="raw", device="cpu").model.state_dict()
    saved = load_checkpoint(run / "checkpoints" / "step-00000012").tensors
    assert all(torch.equal(value, saved["model"][name]) for name, value in found.items())
    assert any(not torch.equal(value, saved["averaged"][name]) for name, value in found.items())
    with pytest.raises(ConfigError, match="one set"):
        load_trained("lidc-hpu-2026", weights="raw")
    with pytest.raises(ConfigError, match="expected ema or raw"):
        load_trained(run, weights="best")


def test_load_takes_a_checkpoint_by_name(run: Path) -> None:
    assert load_trained(run, checkpoint="step-00000005", device="cpu").step == 5
    assert load_trained(run, checkpoint="best", device="cpu").step in (6, 12)


def test_load_says_what_is_wrong(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        load_trained(tmp_path / "nowhere")
    (tmp_path / "crop.png").touch()
    with pytest.raises(CheckpointError, match=r"crop.png: is a file; expected .*run folder"):
        load_trained(tmp_path / "crop.png")
    for checkpoint in ("latest", "best"):
        with pytest.raises(CheckpointError, match=r"not a run's folder \(no settings.json\)"):
            load_trained(tmp_path, checkpoint=checkpoint)
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        load_trained(tmp_path)
    with pytest.raises(CheckpointError, match=r"worst: no such checkpoint.*; there are latest, best, step-"):
        load_trained(run, checkpoint="worst")
    whole = load_checkpoint(run / "checkpoints" / "step-00000012")
    for state, words in (
        ({}, "info, settings missing"),
        ({**whole.state, "info": {"kind": 3, "nonsense": 1}}, "description of the data"),
        ({**whole.state, "info": None}, "description of the data"),
    ):
        save_checkpoint(tmp_path / "checkpoints", step=1, tensors=whole.tensors, state=state)
        with pytest.raises(HPUNetError, match=words):
            load_trained(tmp_path)
    fewer = {"model": {}, "averaged": {}}
    save_checkpoint(tmp_path / "checkpoints", step=1, tensors=fewer, state=whole.state)
    with pytest.raises(CheckpointError, match="belongs to another model: missing"):
        load_trained(tmp_path)


@pytest.mark.parametrize(("group", "weights"), [("averaged", "ema"), ("model", "raw")])
def test_load_refuses_weights_that_are_not_finite(run: Path, tmp_path: Path, group: str, weights: str) -> None:
    found = load_checkpoint(run / "checkpoints" / "step-00000012")
    broken = {name: tensor.clone() for name, tensor in found.tensors[group].items()}
    broken["prior.encoder.0.0.project.weight"].view(-1)[3] = torch.nan
    tensors, where = found.tensors | {group: broken}, tmp_path / "run"
    save_checkpoint(where / "checkpoints", step=12, tensors=tensors, state=found.state)
    with pytest.raises(CheckpointError, match=r"step-00000012: prior\.encoder\.0\.0\.project\.weight: 1 of"):
        load_trained(where, weights=weights, device="cpu")
    load_trained(where, weights="raw" if weights == "ema" else "ema", device="cpu")
    settings, data = tiny_settings("optimiser.ema_decay=0.5"), str(run.parent / "pack")
    with pytest.raises(CheckpointError, match="NaN or infinite"):
        train(settings, data=data, run=where, resume=True, say=lambda _: None)
