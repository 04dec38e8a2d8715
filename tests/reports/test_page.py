"""The report page, from run folders made by hand in the layout that training writes."""

import base64
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from hpunet.config.settings import load_settings
from hpunet.errors import ConfigError, DataError, HPUNetError
from hpunet.reports.curves import training_dynamics
from hpunet.reports.layout import PRINT_DPI
from hpunet.reports.page import Table, write_report
from hpunet.reports.saved_run import read_run

pytest.importorskip("matplotlib")


def make_run(folder: Path, *, preset: str = "demo", validated: bool = True, size: int = 8) -> Path:
    settings = load_settings(preset)
    num_scales = len(settings.model.latent_dims)
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps(settings.model_dump(mode="json")))
    (folder / "run.json").write_text(json.dumps({"hpunet": "0", "torch": "2", "device": "cpu"}))
    lines = []
    for step in range(1, 30):
        kl = {f"kl_{i}": 0.0 for i in range(num_scales)}
        lines.append({"step": step, "rec": 1 / step, "kl": 0.5, **kl, "gradient_norm": None, "skipped": 0})
        if settings.objective.kind == "geco":
            lines[-1] |= {"lambda": 1.0 + step, "constraint": -1.0}
    if validated:
        lines.append({"step": 29, "val_ged2": 0.2, "val_hm_iou": 0.5, "val_iou_rec": 0.9})
        (folder / "pictures").mkdir()
        save_pictures(folder / "pictures/step-00000029.npz", pictures(size))
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def pictures(size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    maps = rng.integers(2, size=(2, 8, size, size)).astype(np.uint8)
    std = rng.uniform(0, 0.5, (2, 5, size, size)).astype(np.float32)
    return {
        "image": rng.random((2, 1, size, size), dtype=np.float32),
        "labels": maps[:, :4],
        "graders": np.array([[True] * 4, [True, True, False, False]]),
        "valid": np.ones((2, size, size), dtype=np.bool_),
        "keys": np.array(["a/0", "b/1"]),
        "prior_mean": maps[:, 0],
        "reconstructions": maps[:, :4],
        **{f"samples_{way}": maps for way in ("full", "global", "local")},
        "std": std,
    }


def save_pictures(path: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def save_summary(run: Path, summary: dict[str, object]) -> Path:
    """The folder of an evaluation, with this summary in it."""
    folder = run / "evaluation/test-16"
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


class Page(HTMLParser):
    """Collects what a page shows and what it would fetch."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.images: list[Image.Image] = []
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href") and value is not None:
                if value.startswith("data:image/png;base64,"):
                    self.images.append(Image.open(io.BytesIO(base64.b64decode(value.partition(",")[2]))))
                else:
                    self.fetched.append(value)
        if tag == "img":
            assert dict(attrs)["alt"]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_write_report_is_one_page_that_fetches_nothing(tmp_path: Path) -> None:
    out = tmp_path / "new/page.html"
    assert write_report([make_run(tmp_path / "one")], out) == out
    page = Page(out)
    assert page.fetched == []
    assert "script" not in page.tags
    first = page.text.index("κ was reached")  # the verdict comes first
    assert page.text.index("Verdict on one") < first < page.text.index("Runs")
    assert not re.search(r"url\(|@import|https?:", re.sub(r"base64,[^\"]*", "", out.read_text()))
    assert len(page.images) == 4  # dynamics, validation, samples, deviations
    assert all(image.width > 300 for image in page.images)
    assert page.tags.count("figcaption") == 4
    assert "most local one" in page.text
    assert list(out.parent.iterdir()) == [out]


def test_write_report_writes_each_figure_for_print_with_its_caption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PRINT_DPI == 300
    for module in ("page", "layout"):
        monkeypatch.setattr(f"hpunet.reports.{module}.PRINT_DPI", 50)  # so that it is quick
    run = make_run(tmp_path / "a b")
    arrays = {name: np.concatenate([array] * 8) for name, array in pictures(8).items()}
    arrays["keys"] = np.array([f"{i:02d}" for i in range(16)])
    hardness = np.where(np.arange(16) % 4 == 1, 0.5, np.nan)
    arrays |= {"hardness": hardness, "hardness_metric": np.array("ged2")}
    save_pictures(save_summary(run, {"num_images": 2}) / "examples.npz", arrays)
    page = Page(write_report([run], tmp_path / "page.html", figures=tmp_path / "figures"))
    names = ["dynamics", "validation", "a-b-samples", "a-b-scales"]
    names += [f"a-b-test-16-{what}" for what in ("samples", "scales", "hardest")]
    written = {path.name for path in (tmp_path / "figures").iterdir()}
    assert written == {"captions.txt", *(f"{name}.{kind}" for name in names for kind in ("png", "svg"))}
    assert len(page.images) == len(names)
    captions = (tmp_path / "figures/captions.txt").read_text(encoding="utf-8")
    for name in names:
        assert f"\n{name}: " in f"\n{captions}"
        with Image.open(tmp_path / f"figures/{name}.png") as picture:
            assert picture.info["dpi"] == pytest.approx((50, 50), abs=1)
        root = ElementTree.parse(tmp_path / f"figures/{name}.svg").getroot()
        texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
        assert len(texts) > 3
    assert "01 – GED² 0.500" in texts  # the last one is that of the hardest
    assert not any(text and text.startswith("00") for text in texts)  # its GED² is undefined
    assert "The hardest of 16 saved examples by GED²" in page.text


def test_write_report_leaves_out_the_hardest_where_they_were_all_shown_before(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    hard = {"hardness": np.array([0.5, np.nan]), "hardness_metric": np.array("ged2")}
    save_pictures(run / "pictures/step-00000029.npz", {**pictures(8), **hard})
    page = Page(write_report([run], tmp_path / "page.html"))
    assert len(page.images) == 4
    assert "hardest" not in page.text


def test_write_report_overlays_runs_and_shows_each_ones_hypotheses(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"seed-{seed}") for seed in (0, 1)]
    runs.append(make_run(tmp_path / "p", preset="lidc-punet"))
    page = Page(write_report(runs, tmp_path / "page.html"))
    assert len(page.images) == 2 + 2 * len(runs)
    for name in ("seed-0", "seed-1", "p"):
        assert f"Hypotheses of {name}" in page.text
    assert "single, global latent scale" in page.text


def test_write_report_draws_more_panels_for_more_scales(tmp_path: Path) -> None:
    few, many = (
        Page(write_report([make_run(tmp_path / preset, preset=preset)], tmp_path / f"{preset}.html"))
        for preset in ("lidc-punet", "lidc-hpu")
    )
    assert many.images[0].height > few.images[0].height
    assert many.images[3].height > few.images[3].height


def test_write_report_has_the_numbers_of_evaluations_and_says_of_how_many_images(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name) for name in "ab"]
    entry = {"mean": 0.25, "std": 0.0123, "patient_mean": 0.2, "patient_std": 0.1, "num_images": 40}
    arrays = {name: np.concatenate([array] * 8) for name, array in pictures(8).items()}
    hard = {"hardness": np.linspace(0, 1, 16), "hardness_metric": np.array("ged2")}
    hard |= {"is_hardest": np.arange(16) > 8, "is_spread": np.arange(16) < 12}
    evaluated = save_summary(runs[0], {"num_images": 40, "ged2": entry, "ap": None, "subset_b": {"num_images": 3}})
    save_pictures(evaluated / "examples.npz", {**arrays, **hard})
    save_summary(runs[1], {"num_images": 0, "hm_iou": entry})  # no examples
    out = write_report(runs, tmp_path / "page.html")
    table = Page(out).text.split("Evaluations")[1].split("Training")[0].split()
    assert " ".join(table).endswith(
        "a, test-16b, test-16 images400 ged20.2500 ± 0.0123 (0.1000)– hm_iou–0.2500 ± 0.0123 (0.1000)"
    )
    assert "The hardest of the 40 evaluated by GED²" in Page(out).text


def test_training_dynamics_draw_and_name_only_the_scales_that_a_run_has(tmp_path: Path) -> None:
    saved = read_run(make_run(tmp_path / "run", preset="lidc-hpu"))

    def panels(*latent_dims: list[int]) -> dict[str, int]:
        """Curves in each panel of a scale, by its title."""
        models = [saved.settings.model.model_copy(update={"latent_dims": dims}) for dims in latent_dims]
        runs = [replace(saved, settings=saved.settings.model_copy(update={"model": model})) for model in models]
        axes = {axis.get_title(): axis for axis in training_dynamics(runs).axes}
        scale = "KL, scale "
        return {t.removeprefix(scale): len(axis.lines) // 2 for t, axis in axes.items() if t.startswith(scale)}

    assert panels([1, 1, 1]) == {"0 (most global)": 1, "1": 1, "2 (most local)": 1}
    assert panels([1]) == {"0": 1}
    assert panels([1, 1], [1, 0, 1]) == {"0 (most global)": 2, "1 (most local)": 1, "2 (most local)": 1}
    assert panels([1, 1], [1, 1, 1]) == {"0 (most global)": 2, "1": 2, "2 (most local)": 1}


def test_write_report_puts_tables_first_and_escapes_words(tmp_path: Path) -> None:
    table = Table(title="<b>", caption="a & b", columns=["x"], rows=[["<i>1"]])
    out = write_report([make_run(tmp_path / "a<u>b")], tmp_path / "page.html", tables=[table])
    page = Page(out)
    assert {"b", "i", "u"}.isdisjoint(page.tags)
    assert page.text.index("<i>1") < page.text.index("Hypotheses of a<u>b")


def test_write_report_of_a_run_before_its_first_validation_says_so(tmp_path: Path) -> None:
    page = Page(write_report([make_run(tmp_path / "early", validated=False)], tmp_path / "page.html"))
    assert len(page.images) == 1
    assert "has not validated yet" in page.text


def test_read_run_leaves_out_a_line_that_a_crash_cut_off(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    whole = read_run(run).log
    with (run / "log.jsonl").open("a") as file:
        file.write('{"step": 30, "re')
    assert read_run(run).log == whole


def test_read_run_gives_series_without_the_values_that_are_not_finite(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    steps, values = run.series("rec")
    assert steps.tolist() == list(range(1, 30))
    assert values[1] == 0.5
    assert len(run.series("gradient_norm")[0]) == 0


def with_array(name: str, array: np.ndarray | None) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        arrays = {**pictures(8), name: array}
        save_pictures(run / "pictures/step-00000029.npz", {n: a for n, a in arrays.items() if a is not None})

    return damage


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no settings": (lambda run: (run / "settings.json").unlink(), "run: .*settings.json"),
    "no description": (lambda run: (run / "run.json").unlink(), "^[^ ]*run.json: cannot be read"),
    "summary of others": (lambda run: save_summary(run, {"num_images": None}), "summary.json"),
    "score of words": (lambda run: save_summary(run, {"num_images": 1, "ged2": {"mean": "x", "std": 1}}), "summary"),
    "settings cut": (lambda run: (run / "settings.json").write_text('{"seed"'), "settings.json: .*JSON"),
    "settings of others": (lambda run: (run / "settings.json").write_text('{"a": 1}'), "settings.json: .*a: unknown"),
    "run is a list": (lambda run: (run / "run.json").write_text("[]"), "run.json: expected a JSON object"),
    "no log": (lambda run: (run / "log.jsonl").unlink(), "log.jsonl: cannot be read"),
    "empty log": (lambda run: (run / "log.jsonl").write_text(""), "log.jsonl: .*lines"),
    "damaged log": (lambda run: (run / "log.jsonl").write_text('{"st\n{"step": 1}\n'), "log.jsonl: line 1"),
    "log without step": (lambda run: (run / "log.jsonl").write_text('{"rec": 1}\n'), "line 1 .*step"),
    "log of words": (lambda run: (run / "log.jsonl").write_text('{"step": 1, "rec": "x"}\n'), "line 1 .*numbers"),
    "binary log": (lambda run: (run / "log.jsonl").write_bytes(b"\xff\n"), "log.jsonl: line 1"),
    "no pictures": (lambda run: (run / "pictures/step-00000029.npz").unlink(), "00029.npz: cannot be read"),
    "no zip": (lambda run: (run / "pictures/step-00000029.npz").write_bytes(b"PK"), "00029.npz: not a readable .npz"),
    "array missing": (with_array("samples_local", None), "00029.npz: lacks samples_local"),
    "array pickled": (with_array("labels", np.array([[{}]])), "00029.npz: not a readable .npz"),
    "array misshapen": (with_array("labels", np.zeros((2, 4, 8, 7), np.uint8)), r"labels: .*\(b=2 r=4 h=8 w=8\)"),
    "image flat": (with_array("image", np.zeros((8, 8), np.float32)), "image: expected floats"),
    "std of words": (with_array("std", np.full((2, 5, 8, 8), "x")), "std: expected floats"),
    "graders misshapen": (with_array("graders", np.ones((2, 3), np.bool_)), "graders: expected booleans"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_write_report_names_the_file_that_is_missing_or_damaged(tmp_path: Path, what: str) -> None:
    damage, expected = DAMAGE[what]
    run = make_run(tmp_path / "run")
    damage(run)
    with pytest.raises(HPUNetError, match=expected):
        write_report([run], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_write_report_refuses_no_runs_and_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one run"):
        write_report([], tmp_path / "page.html")
    with pytest.raises(DataError, match="nowhere: no such folder"):
        write_report([tmp_path / "nowhere"], tmp_path / "page.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(HPUNetError, match="cannot be written"):
        write_report([make_run(tmp_path / "run")], tmp_path / "file/page.html")


def test_report_needs_no_torch_and_says_how_to_get_matplotlib(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['matplotlib'] = None\n"
        "import pathlib, hpunet.reports.page, hpunet.errors\n"
        "try: hpunet.reports.page.write_report([pathlib.Path('run')], pathlib.Path('page.html'))\n"
        "except hpunet.errors.ConfigError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "pip install matplotlib" in result.stdout, result.stderr
