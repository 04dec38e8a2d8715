"""Published weights: made from a run, found by name, verified, and refused by name where they are not whole."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import platformdirs
import pytest
import torch
from PIL import Image
from places import ROOT
from tiny_run import PUNET, tiny_settings, write_tiny_pack

import hpunet
from hpunet.cli.evaluate import evaluate_command
from hpunet.cli.export import export_command
from hpunet.cli.sample import sample_command
from hpunet.config.settings import merged
from hpunet.data.synthetic.source import INFO
from hpunet.errors import CheckpointError, ConfigError, HPUNetError
from hpunet.training.loop import train
from hpunet.utils.files import dump_hashed_json, parse_json, write_hashed
from hpunet.weights import published
from hpunet.weights.load import load_trained, publish
from hpunet.weights.published import DESCRIPTION, POSTERIOR, SAMPLING, cache_folder, published_names, read_published
from hpunet.weights.safetensors_io import decode, encode

NAME = "tiny-lesions-1"
ENDLESS = merged(tiny_settings().model_dump(mode="json"), {"model": {"blocks_per_scale": 10**6}})
CREDIT = "Trained on synthetic lesions. Licence: Apache-2.0. Grüße."


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of both models, the first with averaged weights, and a pack."""
    folder = tmp_path_factory.mktemp("published")
    pack = write_tiny_pack(folder / "pack")
    for name, changes in {"hpu": ("optimiser.ema_decay=0.5",), "punet": PUNET}.items():
        settings = tiny_settings("optimiser.iterations=2", *changes)
        train(settings, data=str(pack), run=folder / name, say=lambda _: None)
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own; work happens beside it."""
    monkeypatch.setenv("HPUNET_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


@pytest.fixture
def folder(place: Path, home: Path) -> Path:
    """The published weights of the first run, in the cache."""
    target = home / "pretrained" / NAME
    publish(load_trained(place / "hpu", device="cpu"), out=target, name=NAME, credit=CREDIT)
    return target


def redescribe(folder: Path, **changes: Any) -> None:
    """Change the description, and seal it again."""
    found = parse_json((folder / DESCRIPTION).read_bytes(), name=DESCRIPTION)
    del found["sha256"]
    changed = {key: value for key, value in (found | changes).items() if value is not None}
    (folder / DESCRIPTION).write_bytes(dump_hashed_json(changed, name=DESCRIPTION))


@pytest.mark.parametrize("kind", ["hpu", "punet"])
def test_a_published_model_is_the_run_rounded_to_half(place: Path, home: Path, kind: str) -> None:
    run = load_trained(place / kind, device="cpu")
    files = publish(run, out=home / "pretrained" / NAME, name=NAME, credit=CREDIT)
    found = load_trained(NAME, device="cpu")
    assert (found.name, found.step, found.credit, found.has_posterior) == (NAME, 2, CREDIT, True)
    assert (found.settings, found.info) == (run.settings, run.info)
    expected = run.model.state_dict()
    assert found.model.state_dict().keys() == expected.keys()
    for key, tensor in found.model.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected[key].half().float())
    assert not found.model.training

    sampling = decode((home / "pretrained" / NAME / SAMPLING).read_bytes(), name=SAMPLING)
    assert {tensor.dtype for tensor in sampling.values()} == {torch.float16}
    assert not any(key.startswith("posterior.") for key in sampling)
    posterior = decode((home / "pretrained" / NAME / POSTERIOR).read_bytes(), name=POSTERIOR)
    assert all(key.startswith("posterior.") for key in posterior)
    assert files.keys() == {SAMPLING, POSTERIOR}


@pytest.mark.parametrize("kind", ["hpu", "punet"])
def test_without_its_posterior_it_samples_and_says_what_is_missing(place: Path, home: Path, kind: str) -> None:
    folder = home / "pretrained" / NAME
    publish(load_trained(place / kind, device="cpu"), out=folder, name=NAME)
    image, labels = torch.rand(1, 1, 16, 16), torch.zeros(1, 16, 16, dtype=torch.long)

    def drawn() -> torch.Tensor:
        model = load_trained(NAME, device="cpu").model
        generator = torch.Generator().manual_seed(0)
        return hpunet.sample(model, image=image, num_samples=2, generator=generator).labels

    whole = drawn()
    (folder / POSTERIOR).unlink()
    assert torch.equal(drawn(), whole)
    found = load_trained(NAME, device="cpu")
    assert not found.has_posterior
    words = f"for sampling only.*needs {POSTERIOR}"
    with pytest.raises(CheckpointError, match=words):
        hpunet.reconstruct(found.model, image=image, labels=labels)
    with pytest.raises(CheckpointError, match=words):
        found.model(image=image, labels=labels)
    with pytest.raises(CheckpointError, match=words):
        evaluate_command(runs=[Path(NAME)], data=str(place / "pack"), samples=2)
    with pytest.raises(ConfigError, match="has no posterior to export"):
        publish(found, out=home / "again", name=NAME)
    assert publish(found, out=home / "again", name=NAME, posterior=False).keys() == {SAMPLING}
    assert not load_trained(home / "again", device="cpu").has_posterior


def test_names_are_looked_for_in_the_package_then_in_the_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    monkeypatch.setattr(published, "search_folders", lambda: [package / "pretrained", cache_folder()])
    assert published_names() == [NAME]
    shutil.copytree(folder, package / "pretrained" / NAME)
    redescribe(package / "pretrained" / NAME, step=77)
    assert load_trained(NAME, device="cpu").step == 77
    assert published_names() == [NAME]
    for word in ("unknown-one", "Not A Name", "../pretrained", f"../{NAME}", "x"):
        with pytest.raises(CheckpointError, match="no such folder"):
            load_trained(word)
    looked = f"known: {NAME}; looked in {package / 'pretrained'} and {folder.parent}"
    with pytest.raises(CheckpointError, match=f"^unknown-one: no such folder .*no published weights.*{looked}"):
        load_trained("unknown-one")
    with pytest.raises(CheckpointError, match=f"^{NAME.upper()}: no such folder .*known: {NAME};"):
        load_trained(NAME.upper())


def test_the_package_itself_is_a_place() -> None:
    assert published.search_folders()[0] == Path(hpunet.__file__).parent / "weights" / "pretrained"


def test_weights_in_the_package_are_whole_and_named_on_the_page(home: Path) -> None:
    inside = published.search_folders()[0]
    names = published_names()
    assert names == sorted(path.name for path in inside.iterdir()) == ["lidc-hpu-2026"]
    docs = ROOT / "docs"
    for name in names:
        found = read_published(inside / name, name=name)
        assert found.posterior is not None
        assert "CC BY 3.0" in found.credit
        assert f"| `{name}` |" in (docs / "guides/weights.md").read_text()
        assert f"docs/model_cards/{name}.md" in found.credit
        assert (docs / "model_cards" / f"{name}.md").is_file()


def test_cache_folder_is_in_hpunet_home_or_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPUNET_HOME", "/place")
    assert cache_folder() == Path("/place/pretrained")
    monkeypatch.delenv("HPUNET_HOME")
    assert cache_folder() == platformdirs.user_cache_path("hpunet", appauthor=False, opinion=False) / "pretrained"
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
        assert cache_folder() == Path("/cache/hpunet/pretrained")


def test_a_folder_wins_over_a_name(folder: Path, place: Path, tmp_path: Path) -> None:
    assert load_trained(NAME, device="cpu").credit == CREDIT
    shutil.copytree(place / "punet", tmp_path / "work" / NAME)
    assert load_trained(NAME, device="cpu").settings.model.kind == "punet"
    shutil.rmtree(tmp_path / "work" / NAME)
    (tmp_path / "work" / NAME).mkdir()
    with pytest.raises(CheckpointError, match=r"not a run's folder.*It hides the published weights of this name in"):
        load_trained(NAME)


def test_published_weights_can_be_used_by_their_folder(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "Any Folder")
    assert load_trained(other, device="cpu").name == NAME
    assert load_trained(other, device="cpu", name="mine").name == "mine"
    with pytest.raises(ConfigError, match="published weights have no 'best'"):
        load_trained(NAME, checkpoint="best")
    shutil.copytree(folder, folder.with_name("other-name"))
    with pytest.raises(CheckpointError, match=f"says that its name is '{NAME}', not 'other-name'"):
        load_trained("other-name")


def test_damage_anywhere_is_refused_by_the_files_name(folder: Path) -> None:
    for file in (DESCRIPTION, SAMPLING, POSTERIOR):
        path = folder / file
        content = path.read_bytes()
        for place in range(0, len(content), max(1, len(content) // 40)):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with pytest.raises(CheckpointError, match=file):
                read_published(folder)
        for cut in (content[:-1], content[: len(content) // 2], b"", content + b"\n"):
            path.write_bytes(cut)
            with pytest.raises(CheckpointError, match=file):
                read_published(folder)
        path.write_bytes(content)
    (folder / SAMPLING).unlink()
    with pytest.raises(CheckpointError, match=f"{SAMPLING}: cannot be read: it does not exist"):
        load_trained(NAME)
    (folder / SAMPLING).mkdir()
    with pytest.raises(CheckpointError, match=f"{SAMPLING}: not a plain file"):
        load_trained(NAME)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "zip"}, "not the description of published weights"),
        ({"version": 2}, "version 2, this hpunet reads 1"),
        ({"step": "two"}, r"expected .*step \(int\)"),
        ({"credit": None}, r"expected .*credit \(str\)"),
        ({"pickle": "weights.pt"}, "expected format"),
        ({"files": {}}, "SHA-256 and size of sampling.safetensors"),
        ({"files": {SAMPLING: {"size": 3}}}, "expected SHA-256"),
        ({"files": {SAMPLING: {"size": 3, "sha256": ""}, "../x": {"size": 3, "sha256": ""}}}, "expected SHA-256"),
        (
            {"files": {SAMPLING: {"size": 3, "sha256": "0" * 64}}},
            r"sampling.safetensors: \d+ bytes, 3 in model.json",
        ),
        ({"settings": {}}, "model: is missing"),
        ({"info": {"kind": 3}}, "description of the data"),
        ({"info": INFO["lesions"].as_json() | {"in_channels": 10**18}}, "in_channels 10+, expected 1 to"),
        ({"info": INFO["lesions"].as_json() | {"num_random_ids": 10**18}}, "num_random_ids 10+, expected 0 to"),
        ({"settings": ENDLESS}, "model.blocks_per_scale: expected"),
    ],
)
def test_descriptions_that_say_something_else_are_refused(folder: Path, changes: dict[str, Any], words: str) -> None:
    redescribe(folder, **changes)
    with pytest.raises(HPUNetError, match=words):
        load_trained(NAME)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_weight_that_is_not_finite_is_refused_by_its_name(folder: Path, value: float) -> None:
    """Its samples would all be: nothing marked."""
    tensors = decode((folder / SAMPLING).read_bytes(), name="")
    tensors["logits.bias"][1] = value
    (folder / SAMPLING).unlink()
    files = parse_json((folder / DESCRIPTION).read_bytes(), name="")["files"]
    redescribe(folder, files=files | {SAMPLING: write_hashed(folder / SAMPLING, encode(tensors, name=""))})
    with pytest.raises(CheckpointError, match=r"logits\.bias: 1 of 2 values are NaN or infinite"):
        load_trained(NAME)


def test_weights_of_another_model_are_refused(folder: Path) -> None:
    settings = parse_json((folder / DESCRIPTION).read_bytes(), name="")["settings"]
    redescribe(folder, settings={**settings, "model": {**settings["model"], "channels": [4, 8]}})
    with pytest.raises(CheckpointError, match="belongs to another model: of another shape"):
        load_trained(NAME)


def test_what_cannot_be_published_leaves_nothing_behind(place: Path, home: Path) -> None:
    trained = load_trained(place / "hpu", device="cpu")
    for name in ("", "x", "Lidc", "a b", "../x", "a/b", ".hidden", "x" * 65):
        with pytest.raises(ConfigError, match=r"name: expected 2 to 64 of a-z"):
            publish(trained, out=home / "out", name=name)
    home.mkdir()
    with pytest.raises(ConfigError, match="home: exists already"):
        publish(trained, out=home, name=NAME)
    with torch.no_grad():
        trained.model.logits.weight[0, 0] = 70_000
    with pytest.raises(CheckpointError, match=r"logits.weight: has values beyond ±65504 or not finite"):
        publish(trained, out=home / "out", name=NAME)
    (home / "file").touch()
    with torch.no_grad():
        trained.model.logits.weight[0, 0] = 0
    with pytest.raises(CheckpointError, match="out: cannot be written"):
        publish(trained, out=home / "file" / "out", name=NAME)
    assert [entry.name for entry in home.iterdir()] == ["file"]


def test_export_sample_and_evaluate_take_a_name(
    place: Path, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "credit.txt").write_text(CREDIT, encoding="utf-8")
    out = home / "pretrained" / NAME
    export_command(run=place / "hpu", out=out, name=NAME, credit=str(tmp_path / "credit.txt"))
    printed = " ".join(capsys.readouterr().out.split())
    files = parse_json((out / DESCRIPTION).read_bytes(), name=DESCRIPTION)["files"]
    for file, entry in files.items():
        assert f"{file} {entry['size'] / 1e6:.1f} MB sha256 {entry['sha256']}" in printed
    assert "names nobody" not in printed
    assert read_published(out).credit == CREDIT
    with pytest.raises(ConfigError, match="exists already"):
        export_command(run=place / "hpu", out=out, name=NAME)

    Image.new("L", (16, 16), 90).save("image.png")
    sample_command(run=Path(NAME), images=[Path("image.png")], out=Path("drawn"), samples=2, quiet=True)
    assert (tmp_path / "work/drawn/image/sample-02.png").is_file()
    evaluate_command(runs=[Path(NAME), place / "hpu"], data=str(place / "pack"), samples=2)
    assert f"{NAME} (iteration 2), hpu (iteration 2): 12 val images" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "work/evaluation" / NAME / "val-2/summary.json").is_file()
    assert sorted(entry.name for entry in out.iterdir()) == sorted([DESCRIPTION, SAMPLING, POSTERIOR])
    assert not (tmp_path / "work" / NAME).exists()


def test_sample_takes_a_temperature_for_each_scale(place: Path, home: Path) -> None:
    settings = tiny_settings("optimiser.iterations=1", "model.channels=[4,6,6]", "model.latent_dims=[1,1]")
    train(settings, data=str(place / "pack"), run=Path("two"), say=lambda _: None)
    Image.effect_noise((16, 16), 90).save("image.png")

    def drawn(temperature: str, out: str) -> list[bytes]:
        images = [Path("image.png")]
        sample_command(run=Path("two"), images=images, out=Path(out), samples=3, temperature=temperature, quiet=True)
        return [Path(out, "image", f"{name}.png").read_bytes() for name in ("mean", "std")]

    assert drawn("1", "a") == drawn("1,1", "b") != drawn("1,3", "c")
    how = parse_json(Path("c/image/hypotheses.json").read_bytes(), name="hypotheses.json")
    assert (how["temperature"], how["orientations"]) == ([1, 3], 1)
    with pytest.raises(ConfigError, match="temperature: expected one entry for each of the 2 scales, got 3"):
        drawn("1,1,1", "d")
    with pytest.raises(ConfigError, match="temperature: expected numbers from 0"):
        drawn("-1", "d")
    assert not Path("d").exists()


@pytest.mark.parametrize("kind", ["hpu", "punet"])
def test_export_with_a_temperature_samples_as_the_run_does_with_it(place: Path, home: Path, kind: str) -> None:
    export_command(run=place / kind, out=home / "cool", name="cool", temperature="0.5", credit="Somebody.")
    cool, run = load_trained(home / "cool", device="cpu"), load_trained(place / kind, device="cpu")
    assert cool.credit.startswith("Somebody.\nThe prior's standard deviations are 0.5 times")
    image, labels = torch.rand(2, 1, 16, 16), torch.randint(2, (2, 16, 16))

    def drawn(model: Any, temperature: float) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        found = hpunet.sample(model, image=image, num_samples=3, temperature=temperature, generator=generator).logits
        assert found is not None
        return found

    torch.testing.assert_close(drawn(cool.model, 1.0), drawn(run.model, 0.5), rtol=0, atol=0.01)
    assert not torch.allclose(drawn(cool.model, 1.0), drawn(run.model, 1.0), rtol=0, atol=0.01)
    one, other = (hpunet.reconstruct(model, image=image, labels=labels).logits for model in (cool.model, run.model))
    torch.testing.assert_close(one, other, rtol=0, atol=0.01)


def test_export_with_orientations_makes_them_the_default(place: Path, home: Path, tmp_path: Path) -> None:
    export_command(run=place / "hpu", out=home / "orient", name="orient", orientations=8)
    orient, run = load_trained(home / "orient", device="cpu"), load_trained(place / "hpu", device="cpu")
    assert (orient.model.orientations, run.model.orientations) == (8, 1)
    evaluate_command(runs=[home / "orient"], data=str(place / "pack"), samples=2, out=tmp_path / "a")
    evaluate_command(runs=[place / "hpu"], data=str(place / "pack"), samples=2, out=tmp_path / "b", orientations=8)
    evaluate_command(runs=[home / "orient"], data=str(place / "pack"), samples=2, out=tmp_path / "c", orientations=1)
    identity, same, without = (
        parse_json((folder / "evaluation.json").read_bytes(), name="evaluation.json")
        for folder in (tmp_path / "a/orient", tmp_path / "b/hpu", tmp_path / "c/orient")
    )
    assert identity["orientations"] == same["orientations"] == 8
    assert "orientations" not in without
    with pytest.raises(ConfigError, match=r"model\.orientations: expected 1, 2, 4 or 8"):
        evaluate_command(runs=[place / "hpu"], data=str(place / "pack"), samples=2, orientations=3)


def test_a_temperature_that_cannot_be_is_refused(place: Path, home: Path) -> None:
    for text, words in (
        ("warm", "temperature: expected numbers such as 0.8 or 0.9,1,1,0.7, got 'warm'"),
        (
            "1,0.5,2",
            "temperature: expected a number above 0 and up to 100, or one per scale (1), coarsest first, got 1,0.5,2",
        ),
        ("0", "got 0"),
        ("nan", "got nan"),
        ("1e38", "up to 100"),
    ):
        with pytest.raises(ConfigError, match=re.escape(words)):
            export_command(run=place / "hpu", out=home / "x", name="xx", temperature=text)
        with pytest.raises(ConfigError, match=re.escape(words)):
            evaluate_command(runs=[place / "hpu"], data=str(place / "pack"), samples=2, temperature=text)


def test_export_takes_a_credit_of_any_length_and_says_when_there_is_none(
    place: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export_command(run=place / "hpu", out=home / "a", name="aa", credit="x" * 5000, without_posterior=True)
    assert len(read_published(home / "a").credit) == 5000
    export_command(run=place / "hpu", out=home / "b", name="bb")
    assert "with --credit" in capsys.readouterr().out
    (home / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="binary: not text"):
        export_command(run=place / "hpu", out=home / "c", name="cc", credit=str(home / "binary"))


def test_sample_with_an_unknown_name_lists_those_that_are_known(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=f"tiny-lesions-2: no such folder.*known: .*{NAME};"):
        sample_command(run=Path("tiny-lesions-2"), images=[Path("x.png")], out=Path("out"), quiet=True)
