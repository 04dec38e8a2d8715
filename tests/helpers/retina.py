"""A set like CHASE-DB1: photographs of both eyes, with two graders whose masks lie beside them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

GRADERS = ["{name}_1stHO.png", "{name}_2ndHO.png"]
PATIENT = r"Image_(\d+)"


def noise(rng: np.random.Generator, size: tuple[int, int]) -> tuple[np.ndarray, list[np.ndarray]]:
    """A picture without content; the second grader marks one column more."""
    masks = [np.zeros(size, bool) for _ in GRADERS]
    for more, mask in enumerate(masks):
        mask[4:12, 8 : 16 + more] = True
    return rng.integers(0, 256, (*size, 3), dtype=np.uint8), masks


def vessels(rng: np.random.Generator, size: tuple[int, int]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Dark lines on an orange disc; the second grader marks them a little wider."""
    y, x = np.ogrid[: size[0], : size[1]]
    disc = (y - size[0] / 2) ** 2 + (x - size[1] / 2) ** 2 < (min(size) / 2 - 4) ** 2
    places = rng.uniform(0.15, 0.85, 7) * size[0]
    courses = [place + size[0] / 30 * np.sin(rng.uniform(4, 9) * x / size[1] + place) for place in places]
    distance = np.min([np.abs(y - course) for course in courses], axis=0)
    picture = np.where(disc[..., None], (190.0, 95.0, 45.0), 8.0) + rng.normal(0, 5, (*size, 1))
    picture[(distance < 13) & disc] -= (90, 50, 20)
    return picture.clip(0, 255).astype(np.uint8), [(distance < width) & disc for width in (12, 14)]


def write_retina(
    root: Path, *, num_patients: int = 4, size: tuple[int, int] = (24, 32), draw: Callable[..., object] = noise
) -> Path:
    """Two images per patient, Image_01L.jpg and Image_01R.jpg."""
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(1, num_patients + 1):
        for eye in "LR":
            stem = f"Image_{number:02d}{eye}"
            picture, masks = draw(rng, size)
            Image.fromarray(picture).save(root / f"{stem}.jpg")
            for mask, name in zip(masks, GRADERS, strict=True):
                Image.fromarray(mask.astype(np.uint8) * 255).save(root / name.replace("{name}", stem))
    return root
