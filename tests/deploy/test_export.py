"""ONNX files against torch: logits and labels for both networks, the example against `Predictor`, what is refused."""

import hashlib
import subprocess
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from tiny_run import tiny_settings

import hpunet
from hpunet.data.synthetic.source import INFO
from hpunet.data.types import SetInfo
from hpunet.deploy.example import normal
from hpunet.deploy.export import DECODER, ENCODER, EXAMPLE, METADATA, export_onnx
from hpunet.deploy.graph import Graph
from hpunet.deploy.networks import decoder_graph, encoder_graph
from hpunet.errors import CheckpointError, ConfigError
from hpunet.models.build import build_model
from hpunet.predict.predictor import Predictor
from hpunet.sampling.orientations import num_orientations
from hpunet.sampling.sample import draw_noise
from hpunet.utils.files import parse_json, read_hashed, read_hashed_json
from hpunet.weights.load import TrainedModel

COLOURS = SetInfo(kind="folder", in_channels=3, num_graders=1, fixed_classes=("sky", "road", "car"), num_random_ids=2)
LESIONS = INFO["lesions"]
HPU = ("model.channels=[4,6,8,8]", "model.latent_dims=[2,0,1]", "model.blocks_per_scale=2")
GLOBAL = ("model.channels=[4,6]", "model.latent_dims=[1]")
PUNET = ("model.kind=punet", "model.channels=[8,12,10]", "model.latent_dims=[3]", "objective.kind=elbo")


def make_trained(*changes: str, orientations: int = 1, info: SetInfo = LESIONS) -> TrainedModel:
    """An untrained network whose samples differ."""
    torch.manual_seed(0)
    settings = tiny_settings(*changes, f"model.orientations={orientations}")
    model = build_model(settings.model, in_channels=info.in_channels, num_classes=info.num_classes).eval()
    with torch.no_grad():
        for module in model.modules() if settings.model.kind == "punet" else []:
            if isinstance(module, torch.nn.Conv2d):
                torch.nn.init.kaiming_normal_(module.weight)
        model.logits.weight.mul_(10)
        for head in model.prior_heads():
            head.scale_sigma(5.0 if settings.model.kind == "hpu" else 1.0)
        side = 2 * model.size_multiples[0]
        logits, _, _ = model.decode(model.encode(image=torch.rand(1, info.in_channels, side, side)))
        assert model.logits.bias is not None
        model.logits.bias -= logits.mean(dim=(0, 2, 3))  # so that all classes show
    return TrainedModel("tiny", model, settings, info, 7, torch.device("cpu"))


def make_sessions(model: Any) -> list[onnxruntime.InferenceSession]:
    graphs = [encoder_graph(model), decoder_graph(model)]
    return [onnxruntime.InferenceSession(g.serialise(producer=("hpunet", "0"), about="")) for g in graphs]


def run_onnx(
    sessions: list[onnxruntime.InferenceSession], model: Any, image: np.ndarray, *, noise: Any, ids: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels (b · s, …): every image is encoded in each orientation that one of its samples has."""
    b, s = ids.shape
    used, entry = np.unique(np.repeat(np.arange(b), s) * 8 + ids.numpy().ravel(), return_inverse=True)
    turned = {"orientation": used % 8} if model.orientations > 1 else {}
    window = np.array([0, 255], dtype=np.float32)
    features = sessions[0].run(None, {"image": image[used // 8], "window": window, **turned})
    inputs = {f"noise_{i}": n.flatten(0, 1).numpy() for i, n in enumerate(noise) if n.shape[2]}
    inputs |= {f"features_{i}": each for i, each in enumerate(features)} | {"entry": entry, **turned}
    logits, labels = sessions[1].run(["logits", "labels"], inputs)
    return logits, labels


@pytest.mark.parametrize("orientations", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("changes", "info"), [(HPU, LESIONS), (GLOBAL, COLOURS), (PUNET, COLOURS)], ids=["hpu", "global", "punet"]
)
def test_logits_and_labels_are_those_of_torch(changes: tuple[str, ...], info: SetInfo, orientations: int) -> None:
    model: Any = make_trained(*changes, orientations=orientations, info=info).model
    sessions, m = make_sessions(model), model.size_multiples[0]
    for b, h, w, s in [(1, m, m, 1), (2, 2 * m, 2 * m, 8), (3, m, 3 * m, 2), (1, 5 * m, m, 3), (16, m, m, 1)]:
        pixels = torch.randint(256, (b, info.in_channels, h, w)).float()
        count = num_orientations(model, size=(h, w))
        ids = (torch.arange(b * s) % count).view(b, s)
        chosen = ids if count > 1 else None
        generator = torch.Generator().manual_seed(0)
        expected = hpunet.sample(
            model, image=pixels / 255, num_samples=s, generator=generator, orientation_ids=chosen
        )
        shapes = [*model.latent_shapes(h, w), *[(1, 1, 1)] * (count > 1)]
        drawn: dict[str, Any] = {"batch": b, "num_samples": s, "generator": torch.Generator().manual_seed(0)}
        noise = draw_noise(shapes, device=torch.device("cpu"), **drawn)[: len(model.latent_dims)]
        logits, labels = run_onnx(sessions, model, pixels.numpy(), noise=noise, ids=ids)
        assert expected.logits is not None
        known = expected.logits.flatten(0, 1)
        assert b * s == 1 or known.std(dim=0).max() > 0.01  # samples differ
        np.testing.assert_allclose(logits, known, rtol=0, atol=2e-6 * max(1.0, float(known.abs().max())))
        np.testing.assert_array_equal(labels, logits.argmax(axis=1))
        assert labels.dtype == np.uint8
        assert (labels == expected.labels.flatten(0, 1).numpy()).mean() > 0.9999


def test_a_transposed_image_that_is_not_square_is_refused() -> None:
    model: Any = make_trained(*GLOBAL, orientations=8).model
    encode, _ = make_sessions(model)
    for h, w in ((2, 6), (6, 2)):
        inputs = {"image": np.ones((1, 1, h, w), np.float32), "window": np.array([0, 1], np.float32)}
        encode.run(None, {**inputs, "orientation": np.array([3])})
        with pytest.raises(Exception, match="Out of range"):
            encode.run(None, {**inputs, "orientation": np.array([4])})


@pytest.mark.parametrize("low", [0.0, -50.0])
def test_windows_scale_stored_values(low: float) -> None:
    """By hand: those outside are clipped, and equal numbers stand for the range of each image."""
    model: Any = make_trained(*GLOBAL).model
    encode, _ = make_sessions(model)

    def features(image: np.ndarray, *window: float) -> np.ndarray:
        found: np.ndarray = encode.run(None, {"image": image, "window": np.array(window, np.float32)})[0]
        return found

    image = np.linspace(-100, 300, 2 * 16, dtype=np.float32).reshape(2, 1, 4, 4)
    by_hand = np.clip((image - low) / (200 - low), 0, 1)
    np.testing.assert_allclose(features(image, low, 200), features(by_hand, 0, 1), atol=1e-6)
    own = (image - image.min(axis=(1, 2, 3), keepdims=True)) / np.ptp(image, axis=(1, 2, 3), keepdims=True)
    np.testing.assert_allclose(features(image, 0, 0), features(own, 0, 1), atol=1e-6)
    constant, zeros = np.full((1, 1, 4, 4), 7, np.float32), np.zeros((1, 1, 4, 4), np.float32)
    np.testing.assert_allclose(features(constant, 0, 0), features(zeros, 0, 1), atol=1e-6)


@pytest.mark.parametrize("seed", [0, 2**32 + 5, 2**63 - 1])
@pytest.mark.parametrize("count", [1, 6, 15, 16, 17, 31, 32, 86])
def test_numpy_draws_the_noise_of_torch(seed: int, count: int) -> None:
    generator, expected = torch.Generator().manual_seed(seed), torch.empty(5, count)
    for row in expected:
        row.normal_(generator=generator)
    np.testing.assert_allclose(normal(seed, 5, count), expected, rtol=0, atol=2e-6)


def load_example(folder: Path) -> Any:
    spec = spec_from_file_location("example", folder / EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BITS16 = replace(LESIONS, image_bits=16)
CASES: dict[str, tuple[tuple[str, ...], int, SetInfo, tuple[int, ...], type]] = {
    "eight orientations": (HPU, 8, LESIONS, (32, 32), np.uint8),
    "padded": (HPU, 8, LESIONS, (13, 22), np.uint8),
    "few latents": (GLOBAL, 4, COLOURS, (5, 6, 3), np.uint8),
    "punet": (PUNET, 8, COLOURS, (17, 17, 3), np.uint8),
    "punet, one orientation": (PUNET, 1, LESIONS, (16, 8), np.uint8),
    "16 bits": (HPU, 1, BITS16, (16, 16), np.uint16),
    "window": (HPU, 2, replace(BITS16, intensity_window=(100.0, 30_000.0)), (16, 16), np.int16),
    "range of the image": (HPU, 2, replace(LESIONS, image_bits=32), (16, 16), np.float32),
}


@pytest.mark.parametrize("case", CASES)
def test_example_draws_the_samples_of_the_predictor(tmp_path: Path, case: str) -> None:
    changes, orientations, info, shape, kind = CASES[case]
    trained = make_trained(*changes, orientations=orientations, info=info)
    export_onnx(trained, out=tmp_path / "model", credit="")
    most = 255 if kind is np.uint8 else 32_000
    image = np.random.default_rng(0).uniform(0, most, shape).astype(kind)
    expected = Predictor(trained)(image, num_samples=16, seed=3)
    labels, logits = load_example(tmp_path / "model").sample(image, 16, 3)
    assert labels.shape == expected.samples.shape
    assert logits.shape == (16, info.num_classes, *shape[:2])
    assert len({each.tobytes() for each in labels}) > 2
    assert (labels == expected.samples).mean() > 0.9999


def test_example_needs_numpy_and_onnxruntime_only(tmp_path: Path) -> None:
    trained = make_trained(*HPU, orientations=8)
    export_onnx(trained, out=tmp_path / "model", credit="")
    image = np.random.default_rng(0).integers(256, size=(16, 16), dtype=np.uint8)
    np.save(tmp_path / "crop.npy", image)
    code = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__'); "
    code += "print({'torch', 'hpunet', 'scipy'} & set(sys.modules))"
    command = [sys.executable, "-c", code, str(tmp_path / "model" / EXAMPLE), str(tmp_path / "crop.npy"), "4", "1"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    labels = np.load(tmp_path / "crop.labels.npy")
    lines = [f"sample {i + 1}: {np.count_nonzero(each)} pixels" for i, each in enumerate(labels)]
    assert printed.splitlines() == [*lines, "set()"]
    np.testing.assert_array_equal(labels, Predictor(trained)(image, num_samples=4, seed=1).samples)


def test_the_published_model_draws_the_same_samples(tmp_path: Path) -> None:
    predictor, image = hpunet.load("lidc-hpu-2026", device="cpu"), hpunet.example("lidc-2").image
    _, difference = export_onnx(predictor.trained, out=tmp_path / "model", credit="Somebody.")
    assert difference < 5e-6
    example = load_example(tmp_path / "model")
    for pixels, num_samples in ((image, 2), (np.concatenate([image, image[:, ::-1]], axis=1), 1)):
        labels, _ = example.sample(pixels, num_samples, 1)
        expected = predictor(pixels, num_samples=num_samples, seed=1).samples
        assert expected.any()
        assert (labels == expected).mean() > 0.9999


def test_the_folder_describes_itself(tmp_path: Path) -> None:
    trained = make_trained(*HPU, orientations=4, info=COLOURS)
    files, _ = export_onnx(trained, out=tmp_path / "model", credit="Grüße.")
    about = read_hashed_json(
        tmp_path / "model" / METADATA, kind="hpunet-onnx", version=1, what="", max_bytes=2**20
    )  # fmt: skip
    assert about["files"] == files
    for file, entry in files.items():
        content = read_hashed(tmp_path / "model" / file, entry, max_bytes=2**20, listed_in=METADATA)
        assert hashlib.sha256(content).hexdigest() == entry["sha256"]
    assert about["latents"] == [
        {"input": "noise_0", "channels": 2, "stride": 8},
        {"input": "noise_2", "channels": 1, "stride": 2},
    ]
    assert (about["size_multiple"], about["channels"], about["orientations"]) == (8, 3, 4)
    assert about["classes"] == ["sky", "road", "car", "instance id 0", "instance id 1"]
    assert (about["window"], about["credit"], about["step"]) == ([0.0, 255.0], "Grüße.", 7)
    for file in (ENCODER, DECODER):
        model = onnx.load(tmp_path / "model" / file)
        assert model.opset_import[0].version >= 17
        assert str(tmp_path) not in str(model)
    inputs = {each.name for each in model.graph.input}
    shared = {f"features_{i}" for i in range(4)} | {"entry", "orientation"}
    assert inputs == shared | {each["input"] for each in about["latents"]}
    again, _ = export_onnx(trained, out=tmp_path / "again", credit="Grüße.")
    assert again == files


def test_what_cannot_be_exported_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = make_trained(*GLOBAL)
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="there: exists already"):
        export_onnx(trained, out=tmp_path / "there", credit="")
    settings = trained.settings
    partial = build_model(settings.model, in_channels=1, num_classes=2, extrapolate=True)
    volumes = build_model(settings.model.model_copy(update={"ndim": 3}), in_channels=1, num_classes=2)
    with pytest.raises(ConfigError, match=r"export: .* volumes"):
        encoder_graph(volumes)
    with pytest.raises(ConfigError, match="extrapolate"):
        export_onnx(replace(trained, model=partial), out=tmp_path / "out", credit="")
    monkeypatch.setattr("hpunet.deploy.graph._MAX_BYTES", 100)
    with pytest.raises(ConfigError, match="an ONNX file holds 100"):
        export_onnx(trained, out=tmp_path / "out", credit="")
    monkeypatch.undo()
    monkeypatch.setattr(
        Graph, "downsample", lambda self, x: self.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    )
    with pytest.raises(CheckpointError, match=r"tiny: logits of onnxruntime .* differ by"):
        export_onnx(trained, out=tmp_path / "out", credit="")
    monkeypatch.undo()
    for module in ("onnx", "onnxruntime"):
        with monkeypatch.context() as without:
            without.setitem(sys.modules, module, None)
            without.delitem(sys.modules, "hpunet.deploy.graph", raising=False)
            without.delitem(sys.modules, "hpunet.deploy.networks", raising=False)
            with pytest.raises(ConfigError, match=rf"needs {module}: pip install onnx onnxruntime"):
                export_onnx(trained, out=tmp_path / "out", credit="")

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hpunet.deploy.export.write_synced", killed)
    with pytest.raises(KeyboardInterrupt):
        export_onnx(trained, out=tmp_path / "out", credit="")
    assert [entry.name for entry in tmp_path.iterdir() if not entry.name.startswith(".")] == ["there"]
    assert not list(tmp_path.rglob("*.onnx"))


def test_metadata_is_plain_json(tmp_path: Path) -> None:
    export_onnx(make_trained(*PUNET), out=tmp_path / "model", credit="")
    about = parse_json((tmp_path / "model" / METADATA).read_bytes(), name="")
    assert about["latents"] == [{"input": "noise_0", "channels": 3, "stride": 0}]
