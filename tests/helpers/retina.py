"""A set like CHASE-DB1: photographs of both eyes, with two graders whose masks lie beside them."""

from pathlib import Path

import numpy as np
from PIL import Image

GRADERS = ["{name}_1stHO.png", "{name}_2ndHO.png"]
PATIENT = r"Image_(\d+)"


def write_retina(root: Path, *, num_patients: int = 4, size: tuple[int, int] = (24, 32)) -> Path:
    """Two images per patient, Image_01L.jpg and Image_01R.jpg; the second grader marks one column more."""
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(1, num_patients + 1):
        for eye in "LR":
            stem = f"Image_{number:02d}{eye}"
            Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(root / f"{stem}.jpg")
            for more, name in enumerate(GRADERS):
                mask = np.zeros(size, np.uint8)
                mask[4:12, 8 : 16 + more] = 255
                Image.fromarray(mask).save(root / name.replace("{name}", stem))
    return root
