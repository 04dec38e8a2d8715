"""From stored values to a model's pixels: windows work alike for every kind of file."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
from lidc_study import Series
from PIL import Image

from hpunet.data.io.inputs import Input, Stored, read_stored, to_input
from hpunet.data.io.windows import NAMED, Window
from hpunet.data.synthetic.source import INFO
from hpunet.errors import ConfigError, DataError

GREY = INFO["lesions"]  # of 8 bits
HOUNSFIELD = np.random.default_rng(0).integers(-1200, 1500, (2, 12, 10))


def as_input(stored: Stored, window: Window | None = None) -> Input:
    return to_input(stored, name="image", where="image", info=GREY, window=window)


def files(folder: Path) -> list[Stored]:
    """The same values as DICOM series, NIfTI volume, arrays by slice, and values."""
    series = Series("P", "1.2", num_slices=2, shape=(12, 10), hounsfield=lambda number: HOUNSFIELD[number])
    nibabel.save(nibabel.Nifti1Image(np.moveaxis(HOUNSFIELD, 0, 2).astype(np.int16), np.eye(4)), folder / "a.nii")
    np.save(folder / "b.npy", HOUNSFIELD[1].astype(np.int16))
    return [*map(read_stored, (series.write(folder), folder / "a.nii", folder / "b.npy")), Stored(HOUNSFIELD)]


@pytest.mark.parametrize("window", [*NAMED, (-100.0, 300.0), "auto"])
def test_windows_work_alike_for_every_kind_of_file(tmp_path: Path, window: Window) -> None:
    for stored in files(tmp_path):
        values = HOUNSFIELD[-len(stored.values) :].astype(np.float64)
        if window == "auto":
            low, high = (of(values, axis=(1, 2), keepdims=True) for of in (np.min, np.max))
        else:
            low, high = (np.float64(limit) for limit in (NAMED[window] if isinstance(window, str) else window))
        expected = np.clip((values - low) / (high - low), 0, 1)
        found = as_input(stored, window)
        np.testing.assert_allclose(found.images[:, 0], expected, atol=1e-6)
        assert "0 to 1" in found.notes[-1]
        with pytest.raises(DataError, match=r"window \(--window\): LOW HIGH, auto"):
            as_input(stored)


def test_the_window_of_a_dicom_file(tmp_path: Path) -> None:
    series = Series("P", "1.2", num_slices=1, shape=(12, 10))
    folder = series.write(tmp_path, lambda _, data: setattr(data, "WindowCenter", "40"))
    with pytest.raises(DataError, match="has no window of its own"):
        as_input(read_stored(folder), "file")

    def set_window(_: int, data: object) -> None:
        for name, value in (("WindowCenter", ["-950", "40"]), ("WindowWidth", ["101", "80"])):
            setattr(data, name, value)

    stored = read_stored(series.write(tmp_path, set_window))
    assert stored.window == (-1000.5, -900.5)
    found = as_input(stored, "file")
    np.testing.assert_allclose(found.images[0, 0], np.clip((series.values(0) + 1000.5) / 100, 0, 1), atol=1e-6)


def test_windows_that_mean_nothing_are_refused() -> None:
    with pytest.raises(DataError, match="8 bits are no Hounsfield units"):
        as_input(Stored(np.zeros((1, 4, 4), np.uint8)), "ct-lung")
    for window in ("lung", (1.0, 1.0), (0.0, np.inf)):
        with pytest.raises(ConfigError, match="window: expected"):
            as_input(Stored(np.zeros((1, 4, 4), np.int16)), window)


def saved(image: Image.Image, path: Path, **options: object) -> Stored:
    image.save(path, **options)
    return read_stored(path)


def test_the_same_picture_in_every_format_is_the_same_input(tmp_path: Path) -> None:
    grey = np.random.default_rng(1).integers(0, 256, (12, 10), dtype=np.uint8)
    image, deep = Image.fromarray(grey), Image.fromarray(grey.astype(np.uint16) * 257)
    palette = Image.fromarray(grey).convert("P")
    palette.putpalette(np.repeat(np.arange(256), 3).tolist())
    full = (0.0, 255.0)
    cases: dict[str, tuple[Stored, Window | None, str]] = {
        "png": (saved(image, tmp_path / "a.png"), None, ""),
        "gif": (saved(image, tmp_path / "a.gif"), None, ""),
        "tif": (saved(image, tmp_path / "a.tif"), None, ""),
        "npy": (Stored(grey[None]), None, ""),
        "palette": (saved(palette, tmp_path / "p.png"), None, ""),
        "rgb": (saved(image.convert("RGB"), tmp_path / "b.png"), None, "used as grey"),
        "rgba": (saved(image.convert("RGBA"), tmp_path / "c.png"), None, "alpha channel"),
        "grey with alpha": (saved(image.convert("LA"), tmp_path / "d.png"), None, "alpha channel"),
        "16 bits": (saved(deep, tmp_path / "e.png"), (0.0, 65535.0), "from 0 to 65535"),
        "32 bits": (saved(Image.fromarray(grey.astype(np.int32)), tmp_path / "f.tif"), full, "from 0 to 255"),
        "float": (saved(Image.fromarray(grey.astype(np.float32)), tmp_path / "g.tif"), full, "from 0 to 255"),
        "float64": (Stored(grey[None] / 255), (0.0, 1.0), "from 0 to 1"),
        "float16": (Stored(grey[None].astype(np.float16)), full, "from 0 to 255"),
    }
    for name, (stored, window, note) in cases.items():
        found = as_input(stored, window)
        np.testing.assert_allclose(found.images[0, 0], grey / 255, atol=1e-6, err_msg=name)
        assert any(note in one for one in found.notes) == bool(note), name
        in_colour = to_input(stored, name="image", where="image", info=INFO["streets"], window=window)
        assert in_colour.images.shape == (1, 3, 12, 10), name
        np.testing.assert_allclose(in_colour.images[0, 1], grey / 255, atol=1e-6, err_msg=name)
    mask = as_input(Stored(grey[None] > 99))
    np.testing.assert_array_equal(mask.images[0, 0], grey > 99)


def test_pictures_that_would_have_to_be_guessed_are_refused(tmp_path: Path) -> None:
    colour = Image.new("RGB", (4, 4), "red")
    with pytest.raises(DataError, match=r"3 channel.*convert\('L'\)"):
        as_input(saved(colour, tmp_path / "a.png"))
    clear = Image.new("RGBA", (4, 4), (1, 2, 3, 128))
    with pytest.raises(DataError, match="partly transparent"):
        as_input(saved(clear, tmp_path / "b.png"))
    with pytest.raises(DataError, match=r"c\.jpg.*CMYK.*convert\('RGB'\)"):
        saved(colour.convert("CMYK"), tmp_path / "c.jpg")
    with pytest.raises(DataError, match="float64 pixels from 0 to 1, the model"):
        as_input(Stored(np.eye(4)[None]))
    for wrong in (np.full((1, 4, 4), np.nan), np.zeros((1, 4, 4), complex), np.zeros((1, 4, 4, 5), np.uint8)):
        with pytest.raises(DataError, match="image: "):
            as_input(Stored(wrong), (0.0, 1.0))
