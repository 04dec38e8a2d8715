"""Images of all kinds: `Predictor` and the command give the same samples, and impossible ones name the problem."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
import tifffile
from lidc_study import Series
from PIL import Image
from typer import Typer
from typer.testing import CliRunner
from untrained import make_predictor, make_trained

import hpunet.predict.prediction
import hpunet.predict.predictor
from hpunet.cli.options import CommandWithWindow
from hpunet.cli.sample import sample_command
from hpunet.data.io.images import read_image
from hpunet.data.io.windows import Window
from hpunet.data.synthetic.source import INFO
from hpunet.errors import DataError
from hpunet.predict.draw import SamplingOptions

PYDICOM = Path(pydicom.__file__).parent / "data" / "test_files"
RANDOM = np.random.default_rng(0)
GREY = RANDOM.integers(0, 256, (16, 12), dtype=np.uint8)
COLOUR = RANDOM.integers(0, 256, (16, 12, 3), dtype=np.uint8)
HOUNSFIELD = RANDOM.integers(-1100, 1500, (16, 12, 2)).astype(np.int16)


def rotated() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def in_palette(colours: np.ndarray) -> Image.Image:
    image = Image.fromarray(GREY % len(colours)).convert("P")
    image.putpalette(colours.astype(np.uint8).ravel().tolist())
    return image


def save(image: Image.Image, name: str, **options: Any) -> None:
    image.save(name, **options)


def grey_files() -> None:
    """Of 8 bits, as the model was trained on."""
    grey = Image.fromarray(GREY)
    for mode in ("L", "LA", "RGB", "RGBA", "1"):
        save(grey.convert(mode), f"mode-{mode}.png")
    save(in_palette(np.repeat(np.arange(0, 250, 50), 3)[:, None].reshape(-1, 3)), "palette.png")
    save(in_palette(np.array([[255] * 3, [0] * 3])), "two.gif")
    for name in ("a.gif", "a.jpg", "a.tif"):
        save(grey, f"{name[-3:]}-{name}")
    save(grey, "upright.jpg", exif=rotated())
    save(grey.convert("RGB"), "rgb.jpg")
    for compression in ("lzw", "zlib", "packbits"):
        tifffile.imwrite(f"{compression}.tif", GREY, compression=compression, rowsperstrip=5)
    tifffile.imwrite("tiles.tif", GREY, tile=(16, 16))
    tifffile.imwrite("white.tif", GREY, photometric="miniswhite")
    tifffile.imwrite("true.tif", GREY > 99)
    for name, array in {"a": GREY, "true": GREY > 99, "one": GREY[..., None], "f": np.asfortranarray(GREY)}.items():
        np.save(f"array-{name}.npy", array)
    for name, array in {"v.nii": GREY, "v3.nii.gz": np.stack([GREY, GREY[::-1]], 2)}.items():
        nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), name)


def colour_files() -> None:
    colour = Image.fromarray(COLOUR)
    for mode in ("RGB", "RGBA"):
        save(colour.convert(mode), f"mode-{mode}.png")
    for name in ("p.png", "p.gif"):
        save(in_palette(COLOUR[0]), f"{name[-3:]}-{name}")
    save(colour, "a.jpg")
    save(colour, "upright.jpg", exif=rotated())
    for name, stored in (("contig", COLOUR), ("separate", COLOUR.transpose(2, 0, 1))):
        tifffile.imwrite(f"{name}.tif", stored, photometric="rgb", planarconfig=name, compression="lzw")
    np.save("array.npy", COLOUR)
    for name in ("grey.png", "grey.gif", "grey.jpg"):
        save(Image.fromarray(GREY), f"{name[-3:]}-{name}")
    for name in ("SC_rgb_small_odd.dcm", "SC_rgb_jpeg_dcmtk.dcm"):
        Path(name).write_bytes((PYDICOM / name).read_bytes())


def other_files() -> None:
    """Of other precisions, by their range."""
    for dtype in (np.float16, np.float32, np.float64, np.int16, np.uint16, np.int32, np.int64):
        np.save(f"{np.dtype(dtype).name}.npy", HOUNSFIELD[..., 0].clip(0).astype(dtype))
    for dtype in (np.float32, np.uint16, np.int32):
        save(Image.fromarray(GREY.astype(dtype)), f"deep-{np.dtype(dtype).name}.tif")
    save(Image.fromarray(GREY.astype(np.uint16) * 99), "deep.png")
    save(Image.fromarray(GREY), "range.png")
    for dtype in (np.int16, np.float32):
        volume = nibabel.Nifti1Image(HOUNSFIELD.astype(dtype), np.eye(4))
        nibabel.save(volume, f"volume-{np.dtype(dtype).name}.nii.gz")
    for name in ("MR_small.dcm", "MR_small_RLE.dcm", "MR_small_jp2klossless.dcm", "MR_small_bigendian.dcm"):
        Path(name).write_bytes((PYDICOM / name).read_bytes())
    Path("x-ray").write_bytes((PYDICOM / "dicomdirtests/77654033/CR1/6154").read_bytes())


def ct_files() -> None:
    folder = Series("P", "1.2", num_slices=3, shape=(16, 12)).write(Path("in"))
    Path("slice.dcm").write_bytes((folder / "1-001.dcm").read_bytes())
    folder.rename("series")
    (folder.parent).rmdir()
    folder.parent.parent.rmdir()
    np.save("array.npy", HOUNSFIELD[..., 1])
    nibabel.save(nibabel.Nifti1Image(HOUNSFIELD, np.eye(4)), "volume.nii")


CASES: list[tuple[Callable[[], None], str, Window | None, int]] = [
    (grey_files, "lesions", None, 24),
    (colour_files, "streets", None, 14),
    (other_files, "lesions", "auto", 19),
    (ct_files, "lesions", "ct-lung", 4),
]


@pytest.mark.parametrize(("write", "model", "window", "count"), CASES)
def test_predictor_and_command_give_the_same(
    write: Callable[[], None],
    model: str,
    window: Window | None,
    count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write()
    paths = sorted(Path().iterdir())
    assert len(paths) == count
    app = Typer()
    app.command(cls=CommandWithWindow)(sample_command)
    monkeypatch.setattr(hpunet.predict.predictor, "load_trained", lambda *_, **__: make_trained(INFO[model]))
    words = [
        model,
        *map(str, paths),
        "--out",
        "out",
        "--samples",
        "2",
        *(["--window", str(window)] if window else []),
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    predictor = make_predictor(INFO[model])
    for path in paths:
        prediction = predictor(path, num_samples=2, window=window)
        folders = [Path("out", part.name) for part in prediction.slices]
        for folder, part in zip(folders, prediction.slices, strict=True):
            written = [read_image(folder / f"sample-{n:02d}.png", labels=True) for n in (1, 2)]
            np.testing.assert_array_equal(part.samples, written, err_msg=str(path))
        values = prediction.image
        assert 0 <= values.min() < values.max() <= 1, path
        if (result_of := Path("out", path.name.split(".")[0], "mean.nii.gz")).is_file():
            np.testing.assert_allclose(nibabel.load(result_of).affine, prediction.affine, atol=1e-4)


def tiff_of_two(name: str) -> None:
    tifffile.imwrite(name, np.stack([GREY, GREY]), photometric="minisblack")


IMPOSSIBLE: dict[str, tuple[Callable[[str], object], str]] = {
    "empty.png": (lambda name: Path(name).touch(), "no header"),
    "cut.png": (lambda name: save(Image.fromarray(GREY), name) or Path(name).write_bytes(b"\x89PNG"), "no header"),
    "text.txt": (lambda name: Path(name).write_text("image"), "expected an image or a volume"),
    "colour.png": (lambda name: save(Image.fromarray(COLOUR), name), r"3 channel.*convert"),
    "clear.png": (lambda name: save(Image.new("RGBA", (9, 9)), name), "partly transparent"),
    "cmyk.jpg": (lambda name: save(Image.new("CMYK", (9, 9)), name), "CMYK"),
    "film.gif": (
        lambda name: save(Image.fromarray(GREY), name, save_all=True, append_images=[Image.fromarray(255 - GREY)]),
        "2 images",
    ),
    "film.tif": (tiff_of_two, "expected one"),
    "jpeg.tif": (lambda name: save(Image.fromarray(GREY), name, compression="jpeg"), "compressed by JPEG"),
    "deep.png": (lambda name: save(Image.fromarray(GREY.astype(np.uint16)), name), "--window"),
    "float.npy": (lambda name: np.save(name, GREY / 255), "float64 pixels from 0 to 0.9"),
    "nan.npy": (lambda name: np.save(name, np.full((9, 9), np.nan)), "81 pixels are NaN"),
    "line.npy": (lambda name: np.save(name, GREY[0]), "expected an image"),
    "none.npy": (lambda name: np.save(name, GREY[:0]), "expected an image"),
    "objects.npy": (lambda name: np.save(name, np.array([None]), allow_pickle=True), "not a readable array"),
    "complex.npy": (lambda name: np.save(name, GREY.astype(complex)), "expected numbers"),
    "five.npy": (lambda name: np.save(name, np.zeros((9, 9, 5), np.uint8)), "5 channels"),
    "four.nii": (
        lambda name: nibabel.save(nibabel.Nifti1Image(np.zeros((4, 4, 2, 3), np.uint8), np.eye(4)), name),
        "dimensions",
    ),
    "report.dcm": (
        lambda name: Path(name).write_bytes((PYDICOM / "test-SR.dcm").read_bytes()),
        "holds no image",
    ),
    "packed.dcm": (
        lambda name: Path(name).write_bytes((PYDICOM / "SC_rgb_jpeg_gdcm.dcm").read_bytes()),
        "pip install",
    ),
    "cut.dcm": (
        lambda name: Path(name).write_bytes((PYDICOM / "MR_truncated.dcm").read_bytes()),
        "bytes of pixels",
    ),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_images_name_the_problem(name: str, tmp_path: Path) -> None:
    write, message = IMPOSSIBLE[name]
    write(str(tmp_path / name))
    with pytest.raises(DataError, match=rf"{name.replace('.', '[.]')}.*{message}"):
        make_predictor()(tmp_path / name, num_samples=1)


@pytest.mark.parametrize("write", [grey_files, colour_files])
def test_pillow_images_are_what_their_files_are(
    write: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Palettes, transparency and EXIF orientation among them."""
    monkeypatch.chdir(tmp_path)
    write()
    predictor = make_predictor(INFO["lesions" if write is grey_files else "streets"])
    for path in sorted(path for path in Path().iterdir() if path.suffix in (".png", ".gif", ".jpg")):
        with Image.open(path) as image:
            as_image, as_path = (predictor.read(one, options=SamplingOptions()) for one in (image, path))
        np.testing.assert_array_equal(as_image.images, as_path.images, err_msg=str(path))
        assert as_image.notes == as_path.notes


def test_paths_of_a_series_are_the_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ct_files()
    predictor = make_predictor()
    files = sorted(Path("series").iterdir(), reverse=True)
    given, folder = (
        predictor.read(image, options=SamplingOptions(window="ct-lung")) for image in (files, Path("series"))
    )
    np.testing.assert_array_equal(given.images, folder.images)
    assert (given.name, folder.name) == ("series", "series")
    with pytest.raises(DataError, match="image: holds no DICOM file"):
        predictor.read([], options=SamplingOptions())
