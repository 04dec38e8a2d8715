"""The layout of a model hub: written, found, read; damaged folders and those of other software are refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from places import ROOT
from tiny_run import PUNET, tiny_settings
from untrained import make_trained

import hpunet
from hpunet.cli.export import export_command
from hpunet.cli.sample import sample_command
from hpunet.cli.view import _check_run
from hpunet.data.synthetic.source import INFO
from hpunet.errors import CheckpointError, ConfigError
from hpunet.models.build import build_model
from hpunet.utils.files import dump_hashed_json, parse_json
from hpunet.weights.hub import CARD, HUB_DESCRIPTION, HUB_WEIGHTS
from hpunet.weights.load import TrainedModel, load_trained, publish, require_posterior
from hpunet.weights.published import published_names

NAME = "tiny-lesions-1"
CREDIT = "Somebody.\n---\nlicense: mit\n---\n# Grüße"


def tiny(*changes: str) -> TrainedModel:
    settings, info = tiny_settings(*changes), INFO["lesions"]
    torch.manual_seed(0)
    model = build_model(settings.model, in_channels=info.in_channels, num_classes=info.num_classes)
    return TrainedModel("tiny", model.eval(), settings, info, 7, torch.device("cpu"))


def write(out: Path, trained: TrainedModel, **how: Any) -> Path:
    publish(trained, out=out, **({"name": NAME, "credit": CREDIT, "hub_license": "other"} | how))
    return out


@pytest.mark.parametrize("license", [None, "other"])
def test_models_of_volumes_are_written_and_read(tmp_path: Path, license: str | None) -> None:
    trained = tiny("model.ndim=3", "model.strides=[[1,2,2]]", "data.crop=[4,16,16]")
    info = replace(trained.info, ndim=3, image_size=(8, 32, 32), spacing=(2.5, 0.7, 0.7))
    write(tmp_path / "out", replace(trained, info=info), hub_license=license)
    found = load_trained(tmp_path / "out", device="cpu")
    assert (found.info, found.model.strides) == (info, ((1, 2, 2),))
    for name, tensor in found.model.state_dict().items():
        assert torch.equal(tensor, trained.model.state_dict()[name].half().float())
        assert tensor.ndim != 5 or tensor.is_contiguous(memory_format=torch.channels_last_3d)
    drawn = hpunet.sample(found.model, image=torch.rand(1, 1, 3, 16, 16), num_samples=2)
    assert drawn.labels.shape == (1, 2, 3, 16, 16)
    if license:
        card = (tmp_path / "out" / CARD).read_text()
        assert "- Volumes: 1 channel(s), 8 bits, 8×32×32 voxels in training" in card
        assert 'predictor("volume.nii.gz"' in card


@pytest.mark.parametrize("changes", [(), PUNET], ids=["hpu", "punet"])
def test_it_reads_back_as_published_weights_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: tuple[str, ...]
) -> None:
    trained = tiny(*changes)
    write(tmp_path / "home/pretrained" / NAME, trained)
    publish(trained, out=tmp_path / "published", name=NAME, credit=CREDIT)
    monkeypatch.setenv("HPUNET_HOME", str(tmp_path / "home"))
    assert NAME in published_names()
    expected = load_trained(tmp_path / "published", device="cpu")
    for where in (NAME, tmp_path / "home/pretrained" / NAME):
        found = load_trained(where, device="cpu")
        about = ("name", "settings", "info", "step", "has_posterior", "credit")
        assert [getattr(found, key) for key in about] == [getattr(expected, key) for key in about]
        state, other = found.model.state_dict(), expected.model.state_dict()
        assert state.keys() == other.keys()
        assert all(torch.equal(tensor, other[key]) for key, tensor in state.items())
    image = torch.rand(16, 16).numpy()
    samples = [
        hpunet.load(each, device="cpu")(image, window=(0.0, 1.0)).samples for each in (NAME, tmp_path / "published")
    ]
    assert (samples[0] == samples[1]).all()


def test_without_its_posterior_it_samples_only(tmp_path: Path) -> None:
    folder = write(tmp_path / "hub", tiny(), posterior=False)
    found = load_trained(folder, device="cpu")
    assert not found.has_posterior
    with pytest.raises(CheckpointError, match=r"hub: .* needs the posterior's weights, which it has not"):
        require_posterior(found, where=folder)


def test_the_front_matter_of_the_card_is_ours(tmp_path: Path) -> None:
    """The credit is text from outside: it cannot end the front matter, and is no markup."""
    card = (write(tmp_path / "hub", tiny(), hub_license="cc-by-4.0") / CARD).read_text(encoding="utf-8")
    first, front, text = card.split("---\n", 2)
    assert first == ""
    lines = front.splitlines()
    assert lines[:3] == ["license: cc-by-4.0", "library_name: hpunet", "pipeline_tag: image-segmentation"]
    assert lines[3:5] == ["tags:", "- hpunet"]
    assert "    license: mit\n" in text
    assert all(line.startswith("    ") or "license" not in line for line in text.splitlines())
    for word in ("", "Apache 2", "mit\nx: y", "x" * 60):
        with pytest.raises(ConfigError, match="license: expected"):
            write(tmp_path / "other", tiny(), hub_license=word)
    with pytest.raises(ConfigError, match="name: expected"):
        write(tmp_path / "other", tiny(), name="Not a name")
    with pytest.raises(ConfigError, match="hub: exists already"):
        write(tmp_path / "hub", tiny())
    assert not (tmp_path / "other").exists()


def test_damage_anywhere_is_refused_by_the_files_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "hub", tiny())
    for file in (HUB_DESCRIPTION, HUB_WEIGHTS):
        path = folder / file
        content = path.read_bytes()
        for place in range(0, len(content), max(1, len(content) // 30)):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with pytest.raises(CheckpointError, match=file):
                load_trained(folder)
        for cut in (content[:-1], b"", content + b"\n"):
            path.write_bytes(cut)
            with pytest.raises(CheckpointError, match=file):
                load_trained(folder)
        path.write_bytes(content)
    (folder / CARD).write_text("Edited.")
    load_trained(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "bert"}, "not the description of published weights"),
        ({"version": 2}, "version 2, this hpunet reads 1"),
        ({"model_type": 3}, r"expected .*model_type \(str\)"),
        ({"files": {}}, "SHA-256 and size of model.safetensors"),
        ({"files": {HUB_WEIGHTS: {"size": 3, "sha256": ""}, "../x": {"size": 3, "sha256": ""}}}, "expected SHA-256"),
        (
            {"files": {HUB_WEIGHTS: {"size": 3, "sha256": "0" * 64}}},
            r"model.safetensors: \d+ bytes, 3 in config.json",
        ),
    ],
)
def test_descriptions_that_say_something_else_are_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    path = write(tmp_path / "hub", tiny()) / HUB_DESCRIPTION
    found = parse_json(path.read_bytes(), name="")
    del found["sha256"]
    path.write_bytes(dump_hashed_json(found | changes, name=HUB_DESCRIPTION))
    with pytest.raises(CheckpointError, match=words):
        load_trained(path.parent)


def test_a_folder_of_other_software_is_refused(tmp_path: Path) -> None:
    (tmp_path / HUB_DESCRIPTION).write_text('{"architectures": ["BertModel"]}')
    with pytest.raises(CheckpointError, match="not a run's folder"):
        load_trained(tmp_path)
    (tmp_path / HUB_WEIGHTS).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"config.json: not the description of published weights"):
        load_trained(tmp_path)


def test_the_command_writes_both_kinds_of_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    publish(make_trained(channels=(4, 6), latent_dims=(1,)), out=Path("model"), name="tiny", credit="Somebody.")
    export_command(run=Path("model"), hub=Path("hub"), temperature="0.5", hub_license="mit")
    printed = " ".join(capsys.readouterr().out.split())
    assert "tiny at iteration 7" in printed
    assert HUB_WEIGHTS in printed
    hub = load_trained("hub", device="cpu")
    assert hub.credit.startswith("Somebody.\nThe prior's standard deviations are 0.5 times")
    export_command(run=Path("hub"), onnx=Path("onnx"), name="tiny-onnx", orientations=8)
    assert "Logits differ from torch's by at most" in capsys.readouterr().out
    about = parse_json(Path("onnx/metadata.json").read_bytes(), name="")
    assert (about["name"], about["orientations"], about["credit"]) == ("tiny-onnx", 8, hub.credit)
    for folder in ({"onnx": Path("a")}, {"out": Path("a"), "name": "aa"}):
        with pytest.raises(ConfigError, match="license: is for --hub"):
            export_command(run=Path("model"), **folder, hub_license="mit")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="without-posterior: ONNX files never hold"):
        export_command(run=Path("model"), onnx=Path("a"), without_posterior=True)
    _check_run(Path("hub"))
    image = ROOT / "src/hpunet/data/examples/lidc/images/lidc-1.png"
    sample_command(run=Path("hub"), images=[image], out=Path("drawn"), samples=2, quiet=True)
    assert Path("drawn/lidc-1/sample-02.png").is_file()
    for how in ({}, {"out": Path("a"), "hub": Path("b"), "name": "aa"}, {"onnx": Path("a"), "hub": Path("b")}):
        with pytest.raises(ConfigError, match="one output folder"):
            export_command(run=Path("model"), **how)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="add --name"):
        export_command(run=Path("model"), out=Path("a"))
    for how in ({"onnx": Path("hub")}, {"hub": Path("hub")}):
        with pytest.raises(ConfigError, match="hub: exists already"):
            export_command(run=Path("model"), **how)  # type: ignore[arg-type]
