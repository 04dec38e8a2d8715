"""`hpunet sample` and `hpunet instances` on files, with untrained networks: what is written, and what is refused."""

import gzip
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from lidc_study import Series
from PIL import Image
from scipy.spatial.transform import Rotation
from typer import Typer
from typer.testing import CliRunner
from untrained import make_trained

import hpunet
import hpunet.predict.predictor
from hpunet.cli.instances import instances_command
from hpunet.cli.options import CommandWithWindow
from hpunet.cli.sample import sample_command
from hpunet.data.io.images import read_image
from hpunet.data.synthetic.source import INFO, open_synthetic
from hpunet.errors import DataError, HPUNetError
from hpunet.predict.contact_sheet import sample_sheet
from hpunet.predict.draw import ImageSamples, SamplingOptions, parse_scales, sample_image
from hpunet.predict.instances import instances_picture
from hpunet.predict.output_folder import result_folder
from hpunet.predict.predictor import Predictor
from hpunet.sampling.hypotheses import distinct_hypotheses
from hpunet.sampling.tiling import Tiled, choose_sampler
from hpunet.utils.label_painter import PALETTE
from hpunet.utils.pictures import marked_part
from hpunet.weights.load import TrainedModel


@pytest.fixture
def hpunet_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Runs a command in a folder of its own; returns the result, whose exception is what main() would print."""
    monkeypatch.chdir(tmp_path)
    app = Typer()
    app.command(name="sample", cls=CommandWithWindow)(sample_command)
    app.command(name="instances", cls=CommandWithWindow)(instances_command)
    models = {"lesions": make_trained(), "neurites": make_trained(INFO["neurites"])}
    models["streets"] = make_trained(INFO["streets"])
    monkeypatch.setattr(hpunet.predict.predictor, "load_trained", lambda run, **_: models[str(run)])
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def save_image(name: str, *, size: tuple[int, int] = (20, 28), seed: int = 0, depth: int = 8) -> Path:
    values = np.random.default_rng(seed).random(size) * (2**depth - 1)
    Image.fromarray(values.astype(np.uint8 if depth == 8 else np.uint16)).save(name)
    return Path(name)


def read_samples(folder: str | Path, count: int) -> np.ndarray:
    return np.stack([read_image(Path(folder) / f"sample-{n:02d}.png", labels=True) for n in range(1, count + 1)])


def test_sample_writes_maps_shares_and_a_sheet(hpunet_command: Callable[..., Any]) -> None:
    result = hpunet_command("sample", "lesions", save_image("a.png"), "--out", "out", "--samples", 5)
    assert result.exit_code == 0, result.output
    names = {f"sample-{n:02d}.png" for n in range(1, 6)} | {
        "mean.png",
        "std.png",
        "sheet.png",
        "hypotheses.json",
        "measurements.csv",
        "measurements.json",
        "state.json",
    }
    assert {path.name for path in Path("out/a").iterdir()} == names
    assert [path.name for path in Path("out").iterdir()] == ["a"]
    samples = read_samples("out/a", 5)
    assert samples.dtype == np.uint8
    assert samples.shape == (5, 20, 28)
    assert len({s.tobytes() for s in samples}) > 1
    image = read_image(Path("a.png")).astype(np.float32)[None] / 255
    drawn = sample_image(make_trained(), image=image, options=SamplingOptions(num_samples=5))
    np.testing.assert_array_equal(samples, drawn.labels)
    for name, expected in (("mean", drawn.mean), ("std", drawn.std)):
        np.testing.assert_allclose(read_image(Path(f"out/a/{name}.png")) / 65535, expected, atol=1e-5)
    found = json.loads(Path("out/a/hypotheses.json").read_text())
    assert sum(h["count"] for h in found["hypotheses"]) == found["num_samples"] == 5
    assert sum(h["share"] for h in found["hypotheses"]) == pytest.approx(1)
    assert sorted(m for h in found["hypotheses"] for m in h["members"]) == [f"sample-{n:02d}" for n in range(1, 6)]
    assert f"{len(found['hypotheses'])} distinct among 5 samples" in result.output
    assert found["same_iou"] == 0.5
    wrong = hpunet_command("sample", "lesions", "a.png", "--out", "other", "--colour", "vessel")
    assert "'vessel'" in str(wrong.exception)
    assert found["summary"] in " ".join(result.output.split())


def test_sample_of_instances_has_no_hypotheses_of_random_ids(hpunet_command: Callable[..., Any]) -> None:
    result = hpunet_command("sample", "neurites", save_image("a.png"), "--out", "out", "--samples", 5)
    assert result.exit_code == 0, result.output
    assert result.stdout.split() == [str(Path("out/a"))]
    found = json.loads(Path("out/a/hypotheses.json").read_text())
    assert (found["num_samples"], found["hypotheses"]) == (5, None)
    assert len(read_samples("out/a", 5)) == 5
    assert read_image(Path("out/a/sheet.png")).size


def test_mean_and_std_are_those_of_the_probabilities() -> None:
    trained = make_trained(INFO["streets"])
    image = np.random.default_rng(0).random((3, 16, 16), dtype=np.float32)
    drawn = sample_image(trained, image=image, options=SamplingOptions(num_samples=6))
    generator = torch.Generator().manual_seed(0)
    probs = (
        hpunet.sample(trained.model, image=torch.from_numpy(image)[None], num_samples=6, generator=generator)
        .probs[0, :, list(trained.info.stochastic_classes)]
        .sum(dim=1)
    )
    np.testing.assert_allclose(drawn.mean, probs.mean(dim=0), atol=1e-6)
    np.testing.assert_allclose(drawn.std, probs.std(dim=0, correction=0), atol=1e-5)
    assert drawn.std.max() > 1e-3


def test_sample_n_depends_on_seed_and_image_alone(hpunet_command: Callable[..., Any]) -> None:
    a, b = save_image("a.png"), save_image("b.png", seed=1)
    for words in (("--out", "one", b), ("--out", "two", a, b, "--samples", 9), ("--out", "three", b, "--seed", 1)):
        assert hpunet_command("sample", "lesions", *words, "--quiet").exit_code == 0
    np.testing.assert_array_equal(read_samples("one/b", 9), read_samples("two/b", 9))
    assert (read_samples("one/b", 9) != read_samples("three/b", 9)).any()
    assert hpunet_command("sample", "lesions", b, "--out", "tiled", "--tile", 16, "--quiet").exit_code == 0
    np.testing.assert_array_equal(read_samples("one/b", 16), read_samples("tiled/b", 16))


def test_scales_say_what_is_drawn() -> None:
    assert parse_scales("full", latent_dims=(1, 1, 1)) == ["sample"] * 3
    assert parse_scales("global", latent_dims=(1, 1, 1)) == ["sample", "mean", "mean"]
    assert parse_scales("local", latent_dims=(1, 1, 1)) == ["mean", "mean", "sample"]
    assert parse_scales("0,2", latent_dims=(1, 1, 1)) == ["sample", "mean", "sample"]
    for wrong in ("3", "-1", "coarse", "", "0,,1"):
        with pytest.raises(HPUNetError, match="scales: expected full, global, local"):
            parse_scales(wrong, latent_dims=(1, 1, 1))
    assert parse_scales("full", latent_dims=(0, 0, 1)) == ["sample"] * 3
    assert parse_scales((), latent_dims=(0, 1)) == ["mean"] * 2
    for silent, latent_dims, there in (
        ("global", (0, 0, 1), "2"),
        ("local", (4, 0, 0), "0"),
        ("1,2", (1, 0, 0, 1), "0, 3"),
    ):
        with pytest.raises(HPUNetError, match=f"draws nothing.* latents at scale {there} only"):
            parse_scales(silent, latent_dims=latent_dims)
    trained, image = make_trained(), np.full((1, 16, 16), 0.5, dtype=np.float32)
    still = sample_image(trained, image=image, options=SamplingOptions(num_samples=3, temperature=0.0))
    assert (still.labels == still.labels[0]).all()
    assert still.std.max() < 1e-6


def test_a_sampler_draws_instead_of_the_model_but_not_in_tiles(hpunet_command: Callable[..., Any]) -> None:
    trained, other = make_trained(), make_trained()
    with torch.no_grad():
        other.model.logits.weight.zero_()
        other.model.logits.bias.copy_(torch.tensor([1.0, 0.0]))  # marks nothing, ever
    image = np.random.default_rng(0).random((1, 16, 16), dtype=np.float32)
    given: dict[str, Any] = {"image": image, "options": SamplingOptions()}
    assert sample_image(trained, **given).labels.any()
    assert not sample_image(
        replace(trained, sampler=other.model), image=image, options=SamplingOptions()
    ).labels.any()
    assert isinstance(choose_sampler(trained.model, size=(16, 16), tile="16", sampler=other.model), Tiled)
    both = Predictor(replace(trained, sampler=other.model))
    pixels = (255 * image).astype(np.uint8)
    assert [both(pixels, num_samples=1, tile=t).origin.kernels for t in ("whole", 16)] == ["fused", "torch"]
    result = hpunet_command("sample", "lesions", save_image("a.png"), "--out", "out", "--kernels", "torch")
    assert result.exit_code == 0, result.output
    assert json.loads(Path("out/a/hypotheses.json").read_text())["kernels"] == "torch"


def test_tiles_are_for_large_images() -> None:
    model = make_trained().model
    assert choose_sampler(model, size=(1024, 1024), tile="auto") is model
    assert choose_sampler(model, size=(4096, 4096), tile="whole") is model
    assert isinstance(choose_sampler(model, size=(1024, 2048), tile="auto"), Tiled)
    with pytest.raises(HPUNetError, match="tile: expected auto, whole or a number"):
        choose_sampler(model, size=(8, 8), tile="large")


ROTATED = np.eye(4)
ROTATED[:3] = np.c_[
    Rotation.from_euler("xyz", [10, 20, 30], degrees=True).as_matrix() * [0.7, 0.71, 2.5], [1, -200.3, 3]
]
GEOMETRY = (
    "pixdim",
    "qform_code",
    "sform_code",
    "srow_x",
    "srow_y",
    "srow_z",
    "quatern_b",
    "qoffset_y",
    "xyzt_units",
)


def save_volume(name: str, shape: Sequence[int], *, kind: Any = nibabel.Nifti1Image, forms: str = "qs") -> Any:
    voxels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    volume = kind(voxels, None)
    volume.header.set_xyzt_units("mm", "sec")
    if "q" in forms:
        volume.set_qform(ROTATED, 1)
    if "s" in forms:
        volume.set_sform(ROTATED + 1e-3, 2)
    nibabel.save(volume, name)
    return nibabel.load(name)


@pytest.mark.parametrize(
    ("name", "shape", "kind", "forms"),
    [
        ("v.nii.gz", (20, 12, 3), nibabel.Nifti1Image, "qs"),
        ("v.nii", (20, 12, 3), nibabel.Nifti2Image, "q"),
        ("v.nii", (9, 12), nibabel.Nifti1Image, "s"),
        ("v.nii", (9, 12, 1, 1), nibabel.Nifti1Image, ""),
    ],
)
def test_nifti_results_lie_where_the_volume_lies(
    hpunet_command: Callable[..., Any], name: str, shape: tuple[int, ...], kind: Any, forms: str
) -> None:
    volume = save_volume(name, shape, kind=kind, forms=forms)
    result = hpunet_command("sample", "lesions", name, "--out", "out", "--samples", 2)
    assert result.exit_code == 0, result.output
    depth = shape[2] if len(shape) > 2 else 1
    for result_name, dtype in (("sample-01", np.uint8), ("mean", np.float32), ("std", np.float32)):
        written = nibabel.load(f"out/v/{result_name}.nii.gz")
        assert type(written) is kind
        assert written.get_data_dtype() == dtype
        assert written.shape == shape
        assert np.array_equal(written.affine, volume.affine)  # bit by bit
        assert written.header.get_zooms() == volume.header.get_zooms()
        for field in GEOMETRY:
            assert np.array_equal(written.header[field], volume.header[field]), field
    voxels = np.asarray(nibabel.load("out/v/sample-02.nii.gz").dataobj).reshape(*shape[:2], depth)
    for z in range(depth):
        picture = read_samples(f"out/v/z-{z:03d}" if depth > 1 else "out/v", 2)[1]
        np.testing.assert_array_equal(picture, voxels[:, :, z])
    assert not list(Path("out/v").glob(".*"))


def test_slices_that_were_not_asked_for_are_nan(hpunet_command: Callable[..., Any]) -> None:
    save_volume("v.nii.gz", (8, 8, 4))
    words = ("sample", "lesions", "v.nii.gz", "--samples", 2, "--slices")
    assert hpunet_command(*words, "1:3", "--out", "out").exit_code == 0
    mean = nibabel.load("out/v/mean.nii.gz").get_fdata()
    assert np.isnan(mean).all(axis=(0, 1)).tolist() == [True, False, False, True]
    assert hpunet_command(*words, "2:5", "--out", "other").exit_code == 1
    assert "slices: expected first:end" in str(hpunet_command(*words, "2", "--out", "other").exception)


def test_pixels_are_scaled_as_in_training(hpunet_command: Callable[..., Any]) -> None:
    """The same image as 8 bit PNG, as an array, and as CT numbers with a window: the same samples."""
    values = read_image(save_image("a.png"))
    np.save("b.npy", values)
    nibabel.save(nibabel.Nifti1Image(values.astype(np.int16) * 4 - 1000, np.eye(4)), "c.nii")
    assert hpunet_command("sample", "lesions", "a.png", "b.npy", "--out", "out").exit_code == 0
    result = hpunet_command("sample", "lesions", "c.nii", "--out", "out", "--window", "-1000", "20")
    assert result.exit_code == 0, result.output
    for name in "bc":
        np.testing.assert_array_equal(read_samples(f"out/{name}", 16), read_samples("out/a", 16))
    windows = [json.loads(Path(f"out/{name}/hypotheses.json").read_text())["window"] for name in "abc"]
    assert windows == [None, None, [-1000, 20]]


def test_a_bad_image_is_named_and_the_rest_goes_on(hpunet_command: Callable[..., Any]) -> None:
    Path("broken.png").write_bytes(Path(save_image("whole.png")).read_bytes()[:-30])
    Image.new("RGB", (8, 8), "red").save("colour.png")
    save_image("deep.png", depth=16)
    np.save("objects.npy", np.array([None]), allow_pickle=True)
    Path("short.npy").write_bytes(
        b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (9999, 9999)}"
    )
    Path("notes.txt").write_text("no image")
    bad = ["broken.png", "colour.png", "deep.png", "objects.npy", "short.npy", "notes.txt", "missing.png"]
    result = hpunet_command("sample", "lesions", *bad, "whole.png", "--out", "out", "--samples", 2)
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert [line.split(":")[1].strip() for line in lines[:-1]] == bad
    assert lines[-1] == "7 of 8 failed."
    assert "3 channel(s), the model was trained on 1; convert it" in lines[1]
    assert "trained on images of 8 bits" in lines[2]
    assert "notes.txt: expected an image or a volume" in lines[5]
    assert [path.name for path in Path("out").iterdir()] == ["whole"]
    again = hpunet_command("sample", "lesions", "whole.png", "--out", "out", "--samples", 2)
    assert again.exit_code == 1
    assert "out/whole: exists already" in again.stderr


@pytest.mark.parametrize("command", ["sample", "instances"])
def test_results_that_are_there_are_one_error_and_replaced_only_when_told(
    hpunet_command: Callable[..., Any], command: str
) -> None:
    words = (command, "neurites", *(save_image(f"{name}.png") for name in "abc"), "--samples", 2, "--out", "out")
    assert hpunet_command(*words).exit_code == 0
    shutil.rmtree("out/b")
    name = "instances.png" if command == "instances" else "sample-01.png"
    before = Path("out/a", name).read_bytes()
    again = hpunet_command(*words, "--seed", 3)
    assert again.exit_code == 1
    assert again.stderr.splitlines()[-2:] == [
        "error: out/a: exists already and 1 more; replace with --replace, or choose another --out",
        "2 of 3 failed.",
    ]
    assert Path("out/b", name).is_file()
    assert Path("out/a", name).read_bytes() == before
    replaced = hpunet_command(*words, "--seed", 3, "--replace")
    assert replaced.exit_code == 0, replaced.output
    assert sorted(path.name for path in Path("out").iterdir()) == ["a", "b", "c"]
    Path("mine/a").mkdir(parents=True)
    Path("mine/a/notes.txt").touch()
    other = hpunet_command(command, "neurites", "a.png", "--samples", 2, "--out", "mine", "--replace")
    assert "mine/a: holds no results" in other.stderr
    assert [path.name for path in Path("mine/a").iterdir()] == ["notes.txt"]


def test_instances_of_data_that_are_there_are_one_error(hpunet_command: Callable[..., Any]) -> None:
    words = ("instances", "neurites", "--data", "synthetic:neurites", "--set", "num_images=2", "--set", "size=16")
    for more, code in (((), 0), ((), 1), (("--replace",), 0)):
        result = hpunet_command(*words, "--samples", 2, "--out", "out", *more)
        assert result.exit_code == code, result.output
        assert result.stderr.count("exists already") == code
        assert Path("out/rand_error.csv").read_text().count("\n") == 3


def test_impossible_choices_end_before_any_work(hpunet_command: Callable[..., Any]) -> None:
    image = save_image("a.png")
    for words, expected in {
        ("--scales", "2"): "scales: expected",
        ("--tile", "7"): "tile: expected an even number",
        ("--slices", "x"): "slices: expected",
        (".",): ".: is a folder, not an image; name its images, ./*.png",
        (str(image),): "images: 2 called 'a'",
        ("--window", "400", "-1000"): "--window: expected LOW below HIGH, got 400 -1000",
        ("--window", "nan", "1"): "--window: expected LOW below HIGH",
        ("--window", "lung"): "auto (the range of each image or slice)",
    }.items():
        result = hpunet_command("sample", "lesions", image, "--out", "out", *words)
        assert isinstance(result.exception, HPUNetError)
        assert expected in str(result.exception)
        assert not Path("out").exists()


@pytest.mark.parametrize("command", ["sample", "instances"])
def test_images_of_one_name_go_by_their_paths(hpunet_command: Callable[..., Any], command: str) -> None:
    for folder in ("all/p1/left", "all/p2"):
        Path(folder).mkdir(parents=True)
    images = [save_image("all/p1/left/a.png"), save_image("all/p2/a.png"), save_image("all/p2/b.png")]
    words = (command, "neurites", *images, "--samples", 2)
    result = hpunet_command(*words, "--out", "out")
    assert result.exit_code == 0, result.output
    written = {path.parent.relative_to("out").as_posix() for path in Path("out").rglob("*.png")}
    assert written == {"p1/left/a", "p2/a", "p2/b"}
    assert hpunet_command(command, "neurites", *images[1:], "--samples", 2, "--out", "short").exit_code == 0
    assert {path.name for path in Path("short").iterdir()} == {"a", "b"}
    for other, expected in {
        "all/p2/a.tif": "2 called 'p2/a'",
        "all/p2.png": "'p2/a' would be inside",
    }.items():
        result = hpunet_command(*words, save_image(other), "--out", "not")
        assert expected in str(result.exception)
        assert not Path("not").exists()


def test_results_of_dicom_name_no_patient(hpunet_command: Callable[..., Any], tmp_path: Path) -> None:
    secrets = ("MUELLER", "PID4711", "1.3.6.1.4.1.99")

    def name_patient(number: int, data: Any) -> None:
        data.PatientName, data.StudyInstanceUID = "MUELLER^EVA", "1.3.6.1.4.1.99.2"

    series = Series("PID4711", "1.3.6.1.4.1.99.1", num_slices=2, shape=(16, 16))
    folder = series.write(tmp_path / "in", name_patient).rename(tmp_path / "1.3.6.1.4.1.99.1")
    broken = tmp_path / "broken.dcm"
    broken.write_bytes((folder / "1-000.dcm").read_bytes()[:-9])
    words = ("--window", "-1000", "400", "--samples", 2, "--out", "out")
    result = hpunet_command("sample", "lesions", folder, broken, *words)
    assert "broken.dcm" in result.stderr
    written = [path for path in Path("out").rglob("*") if path.is_file()]
    assert {path.suffix for path in written} == {".png", ".json", ".csv", ".gz"}
    shown = [result.stdout, *map(str, written), result.stderr.replace(str(broken), "")]
    for path in written:
        content = path.read_bytes()
        shown.append((gzip.decompress(content) if path.suffix == ".gz" else content).decode("latin-1"))
    assert not [text[:200] for text in shown if any(secret in text for secret in secrets)]


def test_texts_of_nifti_headers_are_left_out(hpunet_command: Callable[..., Any]) -> None:
    volume = nibabel.Nifti1Image(np.zeros((8, 8, 1), dtype=np.uint8), np.eye(4))
    for name in ("descrip", "db_name", "aux_file", "intent_name"):
        volume.header[name] = b"MUELLER^EVA"
    nibabel.save(volume, "v.nii.gz")
    assert hpunet_command("sample", "lesions", "v.nii.gz", "--out", "out", "--samples", 1).exit_code == 0
    assert b"MUELLER" not in gzip.decompress(Path("out/v/mean.nii.gz").read_bytes())


def test_sheet_enlarges_what_samples_mark_in_a_small_part() -> None:
    labels = np.zeros((3, 128, 96), dtype=np.uint8)
    whole = (slice(0, 128), slice(0, 96))
    assert marked_part(labels) == whole
    labels[1, 60:66, 90:94] = 1
    assert marked_part(labels) == (slice(51, 75), slice(72, 96))  # 24 pixels at least, and inside of the image
    labels[2, 48:66, 80:84] = 1
    assert marked_part(labels) == (slice(39, 75), slice(60, 96))  # twice as long as what is marked
    labels[0, 10, 85] = 1
    assert marked_part(labels) == whole

    labels[0] = 0
    mean = np.zeros((128, 96), np.float32)
    page = np.asarray(sample_sheet(image=mean[None], labels=labels, mean=mean, std=mean, hypotheses=[], title=""))
    orange = (page == PALETTE[1]).all(axis=-1)
    assert orange.sum() > 56 * (192 / 36) ** 2  # the 56 pixels of both outlines, enlarged, and the frame


@pytest.mark.parametrize(("h", "w", "least"), [(20, 28, 192), (960, 999, 280), (256, 512, 256)])
def test_sheet_is_readable_and_not_too_wide(h: int, w: int, least: int) -> None:
    image = np.broadcast_to(np.array([0.9, 0.6, 0.1], dtype=np.float32)[:, None, None], (3, h, w))
    labels = np.zeros((2, h, w), dtype=np.uint8)
    labels[:, 2:-2, 2:-2] = 1
    maps = np.zeros((h, w), np.float32)
    page = sample_sheet(image=image, labels=labels, mean=maps, std=maps, hypotheses=[], title="")
    assert 3 * least <= page.width <= 2000
    assert page.height > 2 * least
    assert not (np.asarray(page) == PALETTE[1]).all(axis=-1).any()  # orange on orange


def test_thin_structures_of_large_images_stay_visible_on_the_sheet() -> None:
    labels = np.zeros((1, 960, 960), dtype=np.uint8)
    labels[0, 4:-4, 480] = 1
    maps = np.zeros((960, 960), np.float32)
    given: dict[str, Any] = {"image": maps[None], "labels": labels, "mean": maps, "std": maps, "hypotheses": []}
    page = sample_sheet(**given, title="", colour="#00ff00")
    red, green, _ = np.moveaxis(np.asarray(page).astype(int), -1, 0)
    assert (green - red > 150).any(axis=0).sum() <= 3  # narrow
    assert (green - red > 100).any(axis=1).sum() > 280  # through the tile of 300 pixels, hardly mixed with its ground


def test_sheet_has_the_colour_that_is_asked_for() -> None:
    labels, mean = np.eye(20, dtype=np.uint8)[None], np.zeros((20, 20), np.float32)
    given: dict[str, Any] = {"image": mean[None], "labels": labels, "mean": mean, "std": mean, "hypotheses": []}
    page = np.asarray(sample_sheet(**given, title="", colour="#00ff00"))
    assert (page == [0, 255, 0]).all(axis=-1).any()
    assert not (page == PALETTE[1]).all(axis=-1).any()


def test_sheet_shows_samples_once_where_all_are_distinct(monkeypatch: pytest.MonkeyPatch) -> None:
    titles: list[str] = []
    monkeypatch.setattr(
        "hpunet.predict.contact_sheet.sheet", lambda *_, title, **__: titles.append(title) or Image.new("RGB", (8, 8))
    )
    one = np.repeat([[1], [0], [0], [0]], 4, axis=1)
    for row, num_pages in ((0, 3), (2, 2)):  # the same twice, two that differ
        labels = np.stack([one, np.roll(one, row, axis=0)])
        hypotheses = distinct_hypotheses(labels, num_classes=2)
        titles.clear()
        mean = np.zeros((4, 4))
        sample_sheet(image=mean[None], labels=labels, mean=mean, std=mean, hypotheses=hypotheses, title="")
        assert len(titles) == num_pages
    titles.clear()
    sample_sheet(image=mean[None], labels=labels, mean=mean, std=mean, hypotheses=[], title="")
    assert titles == ["", "Samples"]


def test_a_folder_is_whole_or_not_there(tmp_path: Path) -> None:
    def interrupted() -> None:
        with result_folder(tmp_path / "a") as folder:
            (folder / "half").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"), result_folder(tmp_path / "file" / "a"):
        pass


def test_models_that_complete_images_are_refused() -> None:
    trained = make_trained(cond_channels=3)
    with pytest.raises(HPUNetError, match="extrapolate"):
        sample_image(trained, image=np.zeros((1, 8, 8), dtype=np.float32), options=SamplingOptions())


def test_memory_that_does_not_suffice_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("hpunet.predict.draw.stream", full)
    with pytest.raises(DataError, match=r"8x8 pixels do not fit.*--tile"):
        sample_image(make_trained(), image=np.zeros((1, 8, 8), dtype=np.float32), options=SamplingOptions())


def perfect(trained: TrainedModel, truth: dict[bytes, np.ndarray]) -> Callable[..., Any]:
    """Draws in which every true instance has one random id a sample."""

    def draw_truth(_: TrainedModel, *, image: np.ndarray, options: SamplingOptions, **_how: Any) -> Any:
        labels, info = truth[image.tobytes()], trained.info
        rng = np.random.default_rng(options.seed)
        ids = rng.choice(info.stochastic_classes, size=(options.num_samples, labels.max() + 1))
        ids[:, : info.num_fixed_classes] = np.arange(info.num_fixed_classes)
        blank = np.zeros(labels.shape, dtype=np.float32)
        return ImageSamples(ids[:, labels].astype(np.uint8), blank, blank, [], None)

    return draw_truth


@pytest.mark.parametrize(
    ("kind", "how"), [("neurites", ()), ("neurites", ("--samples", 8)), ("streets", ("--connected",))]
)
def test_instances_of_a_perfect_sampler_are_the_true_ones(
    hpunet_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, kind: str, how: tuple[Any, ...]
) -> None:
    source = open_synthetic(kind, split="val", num_images=2, size=128)
    truth = {source[i].image.tobytes(): source[i].labels[0] for i in range(2)}
    monkeypatch.setattr("hpunet.predict.predictor.sample_image", perfect(make_trained(INFO[kind]), truth))
    words = ("--set", "num_images=2", "--set", "size=128", *how)
    result = hpunet_command("instances", kind, "--data", f"synthetic:{kind}", *words, "--out", "out")
    assert result.exit_code == 0, result.output
    *lines, last = result.stdout.splitlines()
    assert len(lines) == 2
    assert last.startswith("Mean Rand error of 2 images: 0.0")
    rows = Path("out/rand_error.csv").read_text().splitlines()
    assert rows[0] == "image,rand_error"
    for row, identity in zip(rows[1:], source.identities, strict=True):
        assert row.startswith(identity.key)
        assert 0 <= float(row.split(",")[1]) < 0.02  # thin ones are painted over
        found = read_image(Path("out", identity.key, "instances.png"), labels=True)
        assert found.dtype == np.uint16
        assert found.max() > 1
        h, w, _ = read_image(Path("out", identity.key, "overlay.png")).shape
        assert h > 512 * found.shape[0] / found.shape[1]
        assert w > 2 * 512  # the truth beside it


def test_overlay_of_instances_is_large_and_tells_neighbours_apart() -> None:
    instances = np.zeros((20, 60), dtype=np.int32)
    for i in range(10):
        instances[2:18, 6 * i : 6 * i + 6] = 8 * i + 1  # touch each other, and have numbers of one hue
    image = np.full((1, 20, 60), 0.5, dtype=np.float32)
    picture = np.asarray(instances_picture(image=image, instances=instances))
    assert picture.shape == (180, 540, 3)
    assert (picture[:18] == 128).all()
    middle = picture[90, 27::54].astype(int)
    assert np.abs(middle[1:] - middle[:-1]).max(axis=1).min() > 40
    unchanged = np.zeros((3, 600), dtype=np.int32)
    image = np.zeros((1, 3, 600), dtype=np.float32)
    assert instances_picture(image=image, instances=unchanged).size == (600, 3)


def test_overlay_of_instances_shows_the_truth_in_the_same_colours() -> None:
    truth = np.repeat(np.arange(1, 5, dtype=np.int32), 16)[None].repeat(32, axis=0)
    image = np.random.default_rng(0).random((3, 32, 64), dtype=np.float32)
    picture = np.asarray(instances_picture(image=image, instances=30 - truth, truth=truth))
    tile = np.asarray(instances_picture(image=image, instances=truth))
    places = [x for x in range(picture.shape[1] - 511) if (picture[-262:-6, x : x + 512] == tile).all()]
    assert len(places) == 2


def test_instances_of_files_are_deterministic(hpunet_command: Callable[..., Any]) -> None:
    save_image("a.png", size=(24, 24))
    save_volume("v.nii.gz", (12, 12, 2))
    for out in ("one", "two"):
        result = hpunet_command("instances", "neurites", "a.png", "v.nii.gz", "--out", out, "--samples", 4)
        assert result.exit_code == 0, result.output
        assert "a: " in result.stdout
    names = ["a/instances.png", "v/z-001/instances.png", "v/instances.nii.gz", "v/z-000/overlay.png"]
    for name in names:
        assert Path("one", name).read_bytes() == Path("two", name).read_bytes()
    written = nibabel.load("one/v/instances.nii.gz")
    assert written.get_data_dtype() == np.uint16
    np.testing.assert_array_equal(read_image(Path("one/v/z-001/instances.png")), written.dataobj[:, :, 1])


def test_instances_refusals(hpunet_command: Callable[..., Any]) -> None:
    image = save_image("a.png")
    Path("own/images").mkdir(parents=True)
    save_image("own/images/a.tif")
    Path("own.tar.gz").touch()
    for words, expected in {
        ("lesions", image): "was trained on classes (background, lesion), not on instances; use hpunet sample",
        ("neurites",): "either images or --data",
        ("neurites", image, "--data", "synthetic:neurites"): "either images or --data",
        ("neurites", "--data", "synthetic:streets"): (
            "synthetic-streets data do not fit the model: 3 image channels where the model has 1; 18 classes where"
        ),
        ("neurites", "--data", "synthetic:lesions"): "0 random ids of instances where the model has 15",
        ("neurites", "own"): "own: is a folder, not an image; for data with instances use --data own, else name its "
        "images, own/images/*.tif",
        ("neurites", "own.tar.gz"): "own.tar.gz: is an archive, not an image; for data with instances use --data own",
        ("neurites", "--data", "nowhere"): "nowhere: no such file or folder",
        ("neurites", image, "--samples", 4, "--alpha", 8): "alpha must be at least 0 and below 8",
        ("neurites", "--data", "synthetic:neurites", "--split", "last"): (
            "synthetic:neurites: has no split 'last', only train, val, test; choose one with --split"
        ),
    }.items():
        result = hpunet_command("instances", *words, "--out", "out")
        assert isinstance(result.exception, HPUNetError), result.output
        assert expected in str(result.exception)
        assert not Path("out").exists()
