"""Makes the pictures of docs/results.md from a folder that `hpunet report --figures` or a benchmark wrote.

    python docs/pictures/figures.py FIGURES NAME=PICTURE …

`lidc-hpu-2026-std=figure_std` turns FIGURES/lidc-hpu-2026-std.png into docs/pictures/figure_std.webp.
"""

import sys
from pathlib import Path

from PIL import Image

HERE, MAX_WIDTH, MAX_BYTES = Path(__file__).parent, 1500, 150_000


def main(folder: Path, names: list[str]) -> None:
    """Shrink each picture until it fits."""
    for source, target in (name.split("=") for name in names):
        picture = Image.open(folder / f"{source}.png").convert("RGB")
        picture.thumbnail((MAX_WIDTH, picture.height), Image.Resampling.LANCZOS)
        path = HERE / f"{target}.webp"
        for quality in range(90, 20, -5):
            picture.save(path, quality=quality, method=6)
            if path.stat().st_size <= MAX_BYTES:
                break
        print(f"{path.name:24} {picture.width}x{picture.height} {path.stat().st_size / 1000:6.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
