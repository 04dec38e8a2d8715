"""Exports on disk: whole or not there, nothing overwritten, and no patient in anything but DICOM."""

import contextlib
import gzip
import logging
import os
import signal
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dicom_series import NAME, PLANTED, write_series
from exported import thresholded
from typer import Typer
from typer.testing import CliRunner
from untrained import make_predictor, make_trained

import hpunet.predict.export.writer
import hpunet.predict.predictor
import hpunet.predict.samples
from hpunet.cli.options import CommandWithWindow
from hpunet.cli.sample import sample_command
from hpunet.errors import ConfigError, DataError
from hpunet.predict.export.registry import FORMATS
from hpunet.predict.prediction import Prediction


@pytest.fixture(scope="module")
def prediction(tmp_path_factory: pytest.TempPathFactory) -> Prediction:
    source = write_series(tmp_path_factory.mktemp("source"), "axial")
    return thresholded(make_predictor(), source, slices=(0, 2))


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_is_overwritten(prediction: Prediction, name: str, tmp_path: Path) -> None:
    prediction.save(tmp_path / "out", formats=name)
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    for again in FORMATS:
        with pytest.raises(DataError, match="exists already"):
            prediction.save(tmp_path / "out", formats=again)
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before
    prediction.save(tmp_path / "out", formats="geojson", replace=True)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"outlines.geojson", "z-000", "z-001"}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "segments.dcm").touch()
    with pytest.raises(DataError, match="no results of hpunet"):
        prediction.save(tmp_path / "other", formats=name, replace=True)


def dying(write: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Writes the file, cuts it in half, and ends the process as kill -9 does."""

    def half(*arguments: Any) -> None:
        write(*arguments)
        os.truncate(arguments[place], os.path.getsize(arguments[place]) // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    return half


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", FORMATS)
def test_a_killed_export_leaves_no_half_file(
    prediction: Prediction, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = hpunet.predict.samples if name == "png" else hpunet.predict.export.writer
    function, place = ("save_picture", 1) if name == "png" else ("write_synced", 0)
    if (process := os.fork()) == 0:
        monkeypatch.setattr(module, function, dying(getattr(module, function), place))
        with contextlib.suppress(BaseException):
            prediction.save(tmp_path / "out", formats=[name])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    left = {path.name for path in tmp_path.iterdir()}
    assert ".tmp-hpunet-out" in left
    assert all(each.startswith(".") for each in left)  # never its real name
    prediction.save(tmp_path / "out", formats=[name])
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith(".lock")} == {"out"}


def contents(path: Path) -> bytes:
    """Of a file, unpacked."""
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        return gzip.decompress(content)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            return b"".join(name.encode() + archive.read(name) for name in archive.namelist())
    return content


def leaks(content: bytes) -> list[str]:
    """What is planted that is in it, in 8 or 16 bits a character."""
    return [
        word for word in PLANTED if any(word.encode(code) in content for code in ("ascii", "utf-16-le", "utf-16-be"))
    ]


@pytest.mark.parametrize("kind", ["axial", "one-file"])
def test_only_dicom_outputs_carry_names_ids_and_uids(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_series(tmp_path / "in", kind)
    app = Typer()
    app.command(name="sample", cls=CommandWithWindow)(sample_command)
    trained = make_trained()
    monkeypatch.setattr(hpunet.predict.predictor, "load_trained", lambda run, **_: trained)
    caplog.set_level(logging.DEBUG)
    logging.getLogger("highdicom").setLevel(logging.DEBUG)
    words = ["m", source, "--out", tmp_path / "out", "--samples", 3, "--window", "-100", "200", "--slices", "0:2"]
    result = CliRunner().invoke(app, [*map(str, words), "--format", ",".join(FORMATS)])
    logging.getLogger("highdicom").setLevel(logging.NOTSET)
    assert result.exit_code == 0, result.output
    assert leaks(result.output.encode()) == []
    assert leaks(caplog.text.encode()) == []
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) > 20
    for path in files:
        assert leaks(str(path.relative_to(tmp_path)).encode()) == []
        if path.suffix == ".dcm":
            assert leaks(path.read_bytes()) == list(PLANTED)
        else:
            assert leaks(contents(path)) == [], path.name
    loaded = make_predictor()(source, num_samples=1, window=(-100.0, 200.0))
    assert leaks(f"{loaded!r} {loaded.place!r} {loaded.state()}".encode()) == []


def test_words_of_libraries_are_not_repeated(
    prediction: Prediction, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def failing(**_: Any) -> None:
        logging.getLogger("highdicom.seg.sop").error(NAME)
        raise ValueError(f"{NAME} is no name")

    monkeypatch.setattr("highdicom.seg.Segmentation", failing)
    with pytest.raises(DataError, match=r"valid DICOM SEG \(ValueError\)") as refused:
        prediction.save(tmp_path / "out", formats="dicom-seg")
    assert "PLANTED^" not in str(refused.value)
    assert refused.value.__suppress_context__
    assert not (tmp_path / "out").exists()


def test_unknown_formats_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    app = Typer()
    app.command(name="sample", cls=CommandWithWindow)(sample_command)
    result = CliRunner().invoke(app, ["m", str(tmp_path / "nowhere.png"), "--out", "out", "--format", "dicom"])
    assert isinstance(result.exception, ConfigError)
    assert "png,nifti,dicom-seg,rtstruct,geojson,imagej" in str(result.exception)
