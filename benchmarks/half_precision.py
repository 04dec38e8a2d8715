"""What storing weights in 16 bits costs: the LIDC model with float16 and bfloat16 weights beside float32.

    python benchmarks/half_precision.py [RUN ...]

Weights are initial ones times 0.25, 0.5 and 1 (at 2, logits reach 1e21) with biases of σ 0.1, or those of the runs
named. Samples share their noise, so that all differences are rounding's. All computing is float32.
"""

import argparse
import copy

import torch

import hpunet
from hpunet.sampling.sample import Samples

TYPES = (torch.float16, torch.bfloat16)
NUM_SAMPLES = 4


def scaled(factor: float, seed: int) -> hpunet.HPUNet:
    """The LIDC model, its weights times a factor."""
    torch.manual_seed(seed)
    model = hpunet.HPUNet(in_channels=1, num_classes=2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(factor)
            else:
                parameter.normal_(0, 0.1)
    return model.eval()


@torch.no_grad()
def rounded(model: torch.nn.Module, dtype: torch.dtype) -> tuple[torch.nn.Module, float]:
    """A copy with weights as `dtype` keeps them, and the root mean square of the change, relative to the weights'."""
    found = copy.deepcopy(model)
    change = total = 0.0
    for parameter in found.parameters():
        kept = parameter.to(dtype).float()
        change += float((kept - parameter).double().square().sum())
        total += float(parameter.double().square().sum())
        parameter.copy_(kept)
    return found, (change / total) ** 0.5


def draw(model: torch.nn.Module, image: torch.Tensor) -> Samples:
    """Some hypotheses, always from the same noise."""
    return hpunet.sample(model, image=image, num_samples=NUM_SAMPLES, generator=torch.Generator().manual_seed(0))


def compare(name: str, model: torch.nn.Module, image: torch.Tensor) -> None:
    """A line for each type."""
    whole = draw(model, image)
    for dtype in TYPES:
        half, change = rounded(model, dtype)
        found = draw(half, image)
        error = (found.logits - whole.logits).square().mean().sqrt() / whole.logits.std()
        labels = (found.labels != whole.labels).float().mean()
        kind = str(dtype).removeprefix("torch.")
        print(f"{name:15} {kind:9} {change:9.1e} {float(error):9.1e} {100 * float(labels):9.4f} %", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*")
    runs = parser.parse_args().runs
    print(f"{'weights':15} {'type':9} {'weights':>9} {'logits':>9} {'labels that changed':>9}")
    if not runs:
        for factor in (0.25, 0.5, 1.0):
            for seed in (0, 1):
                torch.manual_seed(100 + seed)
                compare(f"x {factor:g}, seed {seed}", scaled(factor, seed), torch.rand(1, 1, 128, 128))
    for run in runs:
        trained = hpunet.load(run, device="cpu")
        image = torch.rand(1, trained.info.in_channels, *trained.settings.data.crop)
        compare(trained.name[:15], trained.model, image)


if __name__ == "__main__":
    main()
