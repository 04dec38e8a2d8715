"""`hpunet.example`: a small real image with its gradings; needs no download and no torch."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int32, UInt8

from hpunet.data.io.images import decode_png
from hpunet.errors import ConfigError, DataError
from hpunet.utils.files import atomic_write

_LIDC = Path(__file__).parent / "lidc"
_SHOWN = {
    "lidc-1": "lung CT, 128×128: two of four graders marked a lesion",
    "lidc-2": "lung CT, 128×128: all four graders marked a lesion, with different outlines",
    "lidc-3": "lung CT, 128×128: all four graders marked a lesion, with similar outlines",
}
_CREDIT = (
    "LIDC-IDRI, CC BY 3.0. Armato et al., The Cancer Imaging Archive, 2015; Armato et al., Medical Physics 38(2), "
    "2011; Clark et al., Journal of Digital Imaging 26(6), 2013. Cropped, rescaled to 8 bits."
)


@dataclass(frozen=True)
class Example:
    """One image and what each grader marked."""

    name: str
    image: UInt8[np.ndarray, "h w"]
    labels: Int32[np.ndarray, "r h w"]
    """One map per grader: 0 is background, 1 is lesion. An empty map says "nothing here"."""
    path: Path
    description: str
    credit: str
    """Source and licence. Show it wherever you show the image."""


def example_names() -> list[str]:
    """The names of all examples."""
    return list(_SHOWN)


def example(name: str = "lidc") -> Example:
    """An image that ships with hpunet: "lidc-1", "lidc-2" or "lidc-3" ("lidc" is the first).

    128×128 lung CT crops with four gradings, of patients held out from training: in lidc-1 two of four graders marked
    a lesion, in lidc-2 all four did but with different outlines, in lidc-3 with similar ones.
    """
    names = example_names()
    chosen = f"{name}-1" if name == "lidc" else name
    if chosen not in names:
        raise ConfigError(f"example: expected one of lidc, {', '.join(names)}, got {name!r}")
    path = _LIDC / "images" / f"{chosen}.png"
    graders = sorted(_LIDC.glob(f"graders/*/{chosen}.png"))
    labels = np.stack([_pixels(file) > 0 for file in graders]).astype(np.int32)
    return Example(
        name=chosen, image=_pixels(path), labels=labels, path=path, description=_SHOWN[chosen], credit=_CREDIT
    )


def copy_example(name: str, out: Path, *, labels: bool = False) -> list[Path]:
    """Copy the image of an example into a folder; returns the files written.

    With `labels` the folder becomes a data set: `images/NAME.png` and `graders/GRADER/NAME.png`.
    """
    found = example(name)
    graders = sorted(_LIDC.glob(f"graders/*/{found.path.name}")) if labels else []
    places = [out / "images" if labels else out, *(out / "graders" / grader.parent.name for grader in graders)]
    written = []
    for source, place in zip([found.path, *graders], places, strict=True):
        content, target = source.read_bytes(), place / source.name
        if target.exists() and target.read_bytes() != content:
            raise DataError(f"{target}: exists already; choose another --out")
        atomic_write(target, content)
        written.append(target)
    return written


def _pixels(path: Path) -> np.ndarray:
    return decode_png(path.read_bytes(), name=str(path))
