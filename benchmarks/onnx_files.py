"""Exported ONNX files against torch, in float32 on a CPU: logits, labels, the example, and the speed of both.

    python benchmarks/onnx_files.py [MODEL ...] [--largest 512] [--repeats 5] [--threads 1]

By default of all published models. Each is exported, then computed by onnxruntime and by `hpunet.sample` from the
same noise:

* sizes: every multiple of `size_multiple` up to the largest, as a square, as a height beside the smallest width, and
  as a width; one sample;
* batches: 1 to 16 images of the size of training, one sample each, in all orientations of the model in turn;
* the same from float64 weights and images, at the size of training and the largest: what rounding amounts to;
* the example that is part of the files against `Predictor`: 16 samples of three images, whole and without a border.

Images are the LIDC crops that ship with hpunet, mirrored at their borders to fill other sizes.
"""

import argparse
import copy
import runpy
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

import hpunet
from hpunet.data.examples.load import example_names
from hpunet.deploy.export import EXAMPLE, export_onnx
from hpunet.predict.predictor import Predictor
from hpunet.sampling.orientations import num_orientations
from hpunet.sampling.sample import draw_noise
from hpunet.weights.published import published_names
from timing import medians

NUM_SAMPLES = 16


class Pair:
    """A model in torch and in onnxruntime."""

    def __init__(self, model: Any, folder: Path, *, threads: int) -> None:
        self.model, self.double = model, copy.deepcopy(model).double()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        how: dict[str, Any] = {"sess_options": options, "providers": ["CPUExecutionProvider"]}
        files = (folder / f"{name}.onnx" for name in ("encode", "decode"))
        self.encode, self.decode = (onnxruntime.InferenceSession(file, **how) for file in files)

    def torch_logits(self, image: np.ndarray, *, num_samples: int = 1, double: bool = False) -> np.ndarray:
        """From the noise of seed 0; orientations take turns."""
        x = torch.from_numpy(image) / 255
        _, ids = self._noise(image, num_samples)
        how: dict[str, Any] = {"generator": torch.Generator().manual_seed(0), "num_samples": num_samples}
        if num_orientations(self.model, size=x.shape[2:]) > 1:
            how["orientation_ids"] = ids
        found = hpunet.sample(self.double if double else self.model, image=x.double() if double else x, **how).logits
        assert found is not None
        return found.flatten(0, 1).numpy()

    def onnx_logits(self, image: np.ndarray, *, num_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """The same, and labels."""
        noise, ids = self._noise(image, num_samples)
        keys = np.repeat(np.arange(len(image)), num_samples) * 8 + ids.numpy().ravel()
        used, entry = np.unique(keys, return_inverse=True)
        turned = {"orientation": used % 8} if self.model.orientations > 1 else {}
        window = np.array([0, 255], dtype=np.float32)
        features = self.encode.run(None, {"image": image[used // 8], "window": window, **turned})
        inputs = {f"noise_{i}": n.flatten(0, 1).numpy() for i, n in enumerate(noise) if n.shape[2]}
        inputs |= {f"features_{i}": each for i, each in enumerate(features)} | {"entry": entry, **turned}
        logits, labels = self.decode.run(["logits", "labels"], inputs)
        return logits, labels

    def _noise(self, image: np.ndarray, num_samples: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        b, _, h, w = image.shape
        count = num_orientations(self.model, size=(h, w))
        shapes = [*self.model.latent_shapes(h, w), *[(1, 1, 1)] * (count > 1)]
        how: dict[str, Any] = {"generator": torch.Generator().manual_seed(0), "device": torch.device("cpu")}
        noise = draw_noise(shapes, batch=b, num_samples=num_samples, **how)
        return noise[: len(self.model.latent_dims)], (torch.arange(b * num_samples) % count).view(b, num_samples)


def images(number: int, *, channels: int, height: int, width: int) -> np.ndarray:
    """Batch of stored values (b, c, h, w): the shipped crops one after another, filled up by mirroring."""
    crops = [hpunet.example(name).image.astype(np.float32) for name in example_names()]
    planes = []
    for i in range(number * channels):
        crop = np.rot90(crops[i % len(crops)], i // len(crops))
        missing = [(0, max(0, side - own)) for side, own in zip((height, width), crop.shape, strict=True)]
        planes.append(np.pad(crop, missing, mode="symmetric")[:height, :width])
    return np.stack(planes).reshape(number, channels, height, width)


def compare(pair: Pair, shapes: Iterable[tuple[int, int, int]], *, title: str) -> None:
    """Print the largest difference of logits over all shapes (b, h, w), and the share of equal labels."""
    worst, largest, equal, pixels, tested = 0.0, 0.0, 0, 0, []
    for b, h, w in shapes:
        image = images(b, channels=pair.model.in_channels, height=h, width=w)
        expected, (logits, labels) = pair.torch_logits(image), pair.onnx_logits(image)
        worst, largest = (
            max(worst, float(np.abs(logits - expected).max())),
            max(largest, float(np.abs(expected).max())),
        )
        equal += int((labels == expected.argmax(axis=1)).sum())
        pixels += labels.size
        tested.append((b, h, w))
    print(f"  {title}: {len(tested)} shapes (b, h, w) from {tested[0]} to {tested[-1]}", flush=True)
    print(f"    logits differ by at most {worst:.1e}, the largest is {largest:.0f}: {worst / largest:.1e} of it")
    print(f"    labels equal in {equal / pixels:.6%} of {pixels:,} pixels", flush=True)


def rounding(pair: Pair, side: int) -> None:
    """Print how far float32 is from float64, in torch and in onnxruntime."""
    image = images(1, channels=pair.model.in_channels, height=side, width=side)
    exact = pair.torch_logits(image, double=True)
    torch_off, onnx_off = (
        float(np.abs(found - exact).max()) for found in (pair.torch_logits(image), pair.onnx_logits(image)[0])
    )
    print(f"  float64 at {side}×{side}: torch is off by {torch_off:.1e}, onnxruntime by {onnx_off:.1e}", flush=True)


def run_example(predictor: Predictor, folder: Path) -> None:
    """Print how the example's samples agree with those of `Predictor`."""
    sample = runpy.run_path(str(folder / EXAMPLE))["sample"]
    equal, pixels = 0, 0
    for i in range(3):
        whole = images(i + 1, channels=predictor.model.in_channels, height=128, width=128)[i].astype(np.uint8)
        whole = np.moveaxis(whole, 0, -1)[..., 0] if len(whole) == 1 else np.moveaxis(whole, 0, -1)
        for image in (whole, whole[3:, :-17]):
            labels, _ = sample(image, NUM_SAMPLES, 0)
            equal += int((labels == predictor(image, num_samples=NUM_SAMPLES, seed=0).samples).sum())
            pixels += labels.size
    print(f"  example: {6 * NUM_SAMPLES} samples of 6 images, equal in {equal / pixels:.6%} of {pixels:,} pixels")


def main() -> None:
    """Compare the models one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=published_names())
    parser.add_argument("--largest", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}, {options.threads} thread(s)")
    for name in options.models:
        predictor = hpunet.load(name, device="cpu", kernels="torch")
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "model"
            export_onnx(predictor.trained, out=folder, credit="")
            pair = Pair(predictor.model, folder, threads=options.threads)
            step = predictor.model.size_multiples[0]
            height, width = predictor.settings.data.crop
            print(f"{predictor.name}: sides are multiples of {step}, {predictor.model.orientations} orientation(s)")
            sides = range(step, options.largest + 1, step)
            squares, rest = [(1, side, side) for side in sides], sides[1:]
            compare(pair, [*((1, side, step) for side in rest), *((1, step, side) for side in rest)], title="strips")
            compare(pair, squares, title="squares")
            compare(pair, [(b, height, width) for b in range(1, 17)], title="batches")
            for side in (height, sides[-1]):
                rounding(pair, side)
            run_example(predictor, folder)
            image = images(1, channels=predictor.model.in_channels, height=height, width=width)
            contestants = {
                "torch": lambda pair=pair, image=image: pair.torch_logits(image, num_samples=NUM_SAMPLES),
                "onnxruntime": lambda pair=pair, image=image: pair.onnx_logits(image, num_samples=NUM_SAMPLES),
            }
            seconds = medians(contestants, repeats=options.repeats)
            for each, time in seconds.items():
                print(f"  {each:12} {1000 * time:7.1f} ms for {NUM_SAMPLES} samples, {time / seconds['torch']:.2f}")


if __name__ == "__main__":
    main()
