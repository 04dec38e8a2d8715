"""Samples of an image as hpunet draws them, with numpy and onnxruntime alone.

python example.py IMAGE.npy [NUM_SAMPLES [SEED]]

IMAGE.npy holds stored pixel values, (height, width) or (height, width, channels). Writes IMAGE.labels.npy.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
import onnxruntime

FOLDER = Path(__file__).parent


def normal(seed: int, rows: int, count: int) -> np.ndarray:
    """Rows of standard normal numbers, those of torch's generator with this seed but for rounding."""
    words = np.random.RandomState(seed % 2**32).randint(2**32, size=rows * (2 * count + 32), dtype=np.uint32)
    if count < 16:  # in float64: two words per uniform number, two of those per pair of normal numbers
        high, low = words[: 4 * -(-rows * count // 2)].astype(np.uint64).reshape(-1, 2).T
        uniform = ((high << np.uint64(32) | low) % np.uint64(2**53) * 2.0**-53).reshape(-1, 2)
        radius, angle = np.sqrt(-2 * np.log1p(-uniform[:, 1])), 2 * np.pi * uniform[:, 0]
        found = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)
        return found.reshape(-1)[: rows * count].reshape(rows, count)
    length = count + 16 * (count % 16 > 0)  # in float32, 16 at a time; the last 16 of a row are drawn again
    uniform = (words[: rows * length] % 2**24 * 2.0**-24).astype(np.float32).reshape(rows, length)
    blocks = np.concatenate([uniform[:, : count // 16 * 16], uniform[:, count:]], axis=1).reshape(rows, -1, 2, 8)
    radius, angle = np.sqrt(-2 * np.log(1 - blocks[:, :, 0])), np.float32(2 * np.pi) * blocks[:, :, 1]
    found = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=2).reshape(rows, -1)
    return np.concatenate([found[:, : count - 16], found[:, -16:]], axis=1)


def sample(image: np.ndarray, num_samples: int = 16, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels (s, h, w) and logits (s, k, h, w) of an image of stored pixel values."""
    about = json.loads((FOLDER / "metadata.json").read_text(encoding="utf-8"))
    files, providers = (FOLDER / "encode.onnx", FOLDER / "decode.onnx"), ["CPUExecutionProvider"]
    encode, decode = (onnxruntime.InferenceSession(file, providers=providers) for file in files)
    planes = np.moveaxis(image.reshape(*image.shape[:2], -1), 2, 0).astype(np.float32)
    missing = [-side % about["size_multiple"] for side in planes.shape[1:]]
    (top, bottom), (left, right) = padding = [(total // 2, total - total // 2) for total in missing]
    planes = np.pad(planes, [(0, 0), *padding], mode="edge")
    h, w = planes.shape[1:]
    strides = [(scale["stride"] or h, scale["stride"] or w) for scale in about["latents"]]  # none: one position
    shapes = [(z["channels"], h // y, w // x) for z, (y, x) in zip(about["latents"], strides, strict=True)]
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    count = about["orientations"] if h == w else min(about["orientations"], 4)
    drawn = normal(seed, num_samples, int(ends[-1]) + (count > 1))  # the last number chooses the orientation
    parts = np.split(drawn, ends, axis=1)
    noise = {z["input"]: part.reshape(-1, *s) for z, part, s in zip(about["latents"], parts, shapes, strict=False)}
    chosen = [int(count * (0.5 + 0.5 * math.erf(x / 2**0.5))) if count > 1 else 0 for x in drawn[:, -1]]
    used, entry = np.unique(chosen, return_inverse=True)
    turned = {"orientation": used} if about["orientations"] > 1 else {}
    batch = np.repeat(planes[np.newaxis], len(used), axis=0)
    features = encode.run(None, {"image": batch, "window": np.array(about["window"], dtype=np.float32), **turned})
    shared = turned | {f"features_{i}": each for i, each in enumerate(features)}
    labels: list[np.ndarray] = []
    logits: list[np.ndarray] = []
    for i in range(num_samples):  # one at a time needs the least memory
        own = {name: values[i : i + 1] for name, values in noise.items()} | {"entry": entry[i : i + 1]}
        for kept, found in zip((labels, logits), decode.run(["labels", "logits"], shared | own), strict=True):
            kept.append(found[0, ..., top : h - bottom, left : w - right])
    if not all(np.isfinite(each).all() for each in logits):  # labels would be 0: nothing marked
        raise ValueError("logits are NaN or infinite, which are no segmentation; are all pixels finite?")
    return np.stack(labels), np.stack(logits)


if __name__ == "__main__":
    path, numbers = Path(sys.argv[1]), map(int, sys.argv[2:])
    found = sample(np.load(path), *numbers)[0]
    np.save(path.with_suffix(".labels.npy"), found)
    for number, labels in enumerate(found, start=1):
        print(f"sample {number}: {np.count_nonzero(labels)} pixels")
