"""What `Predictor` adds to the bare model: one 128×128 image, 16 hypotheses of the published LIDC model, on CPU.

    python benchmarks/predictor.py [--repeats 15] [--threads 1]

Both take turns in one process. `Predictor` also scales and pads the image, keeps mean, spread and latents, and groups
samples into hypotheses, which the last line includes.
"""

import argparse

import torch

import hpunet
from timing import medians

NUM_SAMPLES = 16


def main() -> None:
    """Print median seconds and their ratio to the bare model's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    predictor, pixels = hpunet.load("lidc-hpu-2026", device="cpu"), hpunet.example("lidc-2").image
    image = torch.tensor(pixels)[None, None] / 255

    def bare() -> object:
        generator = torch.Generator().manual_seed(0)
        return hpunet.sample(predictor.model, image=image, num_samples=NUM_SAMPLES, generator=generator)

    contestants = {
        "hpunet.sample": bare,
        "Predictor": lambda: predictor(pixels, num_samples=NUM_SAMPLES),
        "Predictor, hypotheses": lambda: predictor(pixels, num_samples=NUM_SAMPLES).hypotheses,
    }
    seconds = medians(contestants, repeats=options.repeats, warmup=2)
    for name, each in seconds.items():
        print(f"{name:22} {1000 * each:7.1f} ms   {each / seconds['hpunet.sample']:.3f} times")


if __name__ == "__main__":
    main()
