"""Arrays, tensors and Pillow images: the samples of a file of these values, or an error that names the cure."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from untrained import make_predictor

from hpunet.data.synthetic.source import INFO
from hpunet.errors import DataError
from hpunet.predict.predictor import Predictor

RANDOM = np.random.default_rng(0)
GREY = RANDOM.integers(0, 256, (16, 12), dtype=np.uint8)
COLOUR = RANDOM.integers(0, 256, (16, 12, 3), dtype=np.uint8)
OPAQUE = np.dstack([COLOUR, np.full((16, 12), 255, np.uint8)])
PREDICTORS = {"lesions": make_predictor(), "streets": make_predictor(INFO["streets"])}


def samples(predictor: Predictor, image: Any, **how: Any) -> np.ndarray:
    return predictor(image, num_samples=2, **how).samples


def turned(image: Image.Image) -> Image.Image:
    """An image that is stored rotated and says so."""
    stored = image.transpose(Image.Transpose.ROTATE_90)
    stored.getexif()[0x0112] = 6
    return stored


SAME: dict[str, tuple[str, Any]] = {
    "h w c": ("lesions", GREY[..., None]),
    "c h w": ("lesions", GREY[None]),
    "1 c h w": ("lesions", GREY[None, None]),
    "1 h w c": ("lesions", GREY[None, ..., None]),
    "strides": ("lesions", np.flipud(np.flipud(GREY).copy())),
    "fortran": ("lesions", np.asfortranarray(GREY)),
    "big endian": ("lesions", (GREY.astype(">u2"), (0.0, 255.0))),
    "torch": ("lesions", torch.from_numpy(GREY.copy())),
    "torch 1 c h w": ("lesions", torch.from_numpy(GREY.copy())[None, None]),
    "torch float": ("lesions", (torch.from_numpy(GREY.copy()).float() / 255, (0.0, 1.0))),
    "torch bfloat16": ("lesions", (torch.from_numpy(GREY.copy()).bfloat16(), (0.0, 255.0))),
    "torch gradient": ("lesions", (torch.from_numpy(GREY.copy()).double().requires_grad_(), (0.0, 255.0))),
    "Pillow L": ("lesions", Image.fromarray(GREY)),
    "Pillow LA": ("lesions", Image.fromarray(GREY).convert("LA")),
    "Pillow I": ("lesions", (Image.fromarray(GREY.astype(np.int32)), (0.0, 255.0))),
    "Pillow I;16": ("lesions", (Image.fromarray(GREY.astype(np.uint16)), (0.0, 255.0))),
    "Pillow F": ("lesions", (Image.fromarray(GREY.astype(np.float32)), (0.0, 255.0))),
    "Pillow turned": ("lesions", turned(Image.fromarray(GREY))),
    "RGB c h w": ("streets", np.moveaxis(COLOUR, -1, 0)),
    "RGB 1 c h w": ("streets", np.moveaxis(COLOUR, -1, 0)[None]),
    "RGBA": ("streets", OPAQUE),
    "RGBA c h w": ("streets", np.moveaxis(OPAQUE, -1, 0)),
    "RGB torch": ("streets", torch.from_numpy(COLOUR.copy()).permute(2, 0, 1)),
    "Pillow RGB": ("streets", Image.fromarray(COLOUR)),
    "Pillow RGBA": ("streets", Image.fromarray(OPAQUE)),
}
SAME |= {
    f"numpy {np.dtype(dtype).name}": ("lesions", (GREY.astype(dtype), (0.0, 255.0)))
    for dtype in (np.int16, np.uint16, np.int32, np.uint32, np.int64, np.float16, np.float32, np.float64)
}


@pytest.mark.parametrize("case", SAME)
def test_images_in_memory_give_the_samples_of_their_values(case: str) -> None:
    model, image = SAME[case]
    expected = samples(PREDICTORS[model], GREY if model == "lesions" else COLOUR)
    image, window = image if isinstance(image, tuple) else (image, None)
    found = samples(PREDICTORS[model], image, window=window)
    if "bfloat16" in case:  # has 8 bits of precision
        assert (found == expected).mean() > 0.9
    else:
        np.testing.assert_array_equal(found, expected)


def test_black_and_white_is_0_and_255() -> None:
    expected = samples(PREDICTORS["lesions"], (GREY > 99) * np.uint8(255))
    for image in (GREY > 99, torch.from_numpy(GREY > 99), Image.fromarray(GREY > 99)):
        np.testing.assert_array_equal(samples(PREDICTORS["lesions"], image), expected)


IMPOSSIBLE: dict[str, tuple[Any, str]] = {
    "float64": (GREY / 255, r"float64 pixels from 0 to .*window"),
    "Hounsfield units": (GREY.astype(np.int16) * 9 - 1000, r"int16 pixels from -\d+ .*window"),
    "NaN": (np.where(GREY < 9, np.nan, GREY), r"\d+ pixels are NaN"),
    "torch NaN": (torch.full((9, 9), torch.inf), "81 pixels are NaN or infinite"),
    "batch": (np.zeros((2, 1, 9, 9), np.uint8), "batch.*map"),
    "volume": (np.zeros((9, 9, 9), np.uint8), "no axis of 1 to 4 channels"),
    "either order": (np.zeros((3, 9, 3), np.uint8), r"\(3, 9, 3\).*first or last"),
    "line": (GREY[0], r"\(12,\)"),
    "empty": (GREY[:0], r"\(0, 12\)"),
    "five axes": (GREY[None, None, None], "expected"),
    "complex": (GREY.astype(complex), "complex128"),
    "words": (np.array([["a", "b"]]), "expected numbers"),
    "colours": (COLOUR, r"3 channel.*convert"),
    "transparent": (np.dstack([GREY, GREY]), "transparent"),
    "Pillow CMYK": (Image.new("CMYK", (9, 9)), "CMYK.*convert"),
    "Pillow HSV": (Image.new("HSV", (9, 9)), "HSV"),
    "torch complex": (torch.zeros(9, 9, dtype=torch.complex64), "complex64"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_impossible_images_in_memory_name_the_problem(case: str) -> None:
    image, message = IMPOSSIBLE[case]
    with pytest.raises(DataError, match=message) as caught:
        samples(PREDICTORS["lesions"], image)
    assert str(caught.value).startswith("image: ")
