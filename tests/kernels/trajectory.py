"""300 training steps on fused kernels beside plain torch: same seed, data and noise.

    python tests/kernels/trajectory.py [--steps 300]

Needs a GPU. The loss may be off from plain float32's by at most 1.5 times what plain bfloat16's is, on average.
"""

import argparse
import tempfile
from pathlib import Path

import torch

from hpunet.config.settings import load_settings
from hpunet.data.packs import write_pack
from hpunet.data.synthetic.source import open_synthetic
from hpunet.training.run import Training

ALLOWED = 1.5
RUNS = {"float32": ("fp32", "torch"), "bfloat16": ("bf16", "torch"), "fused": ("bf16", "fused")}


def losses(pack: Path, *, precision: str, kernels: str, steps: int) -> list[float]:
    changes = [f"optimiser.precision={precision}", f"optimiser.kernels={kernels}", f"optimiser.iterations={steps}"]
    settings = load_settings("lidc-hpu", changes)
    training = Training(settings, pack_path=pack, run=pack.parent, device=torch.device("cuda"))
    found = []
    for terms, _ in training.run_steps():
        training.step += 1
        found.append(terms.loss.clone())
    return torch.stack(found).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = open_synthetic("lesions", split="train", num_images=128, size=(180, 180))
        pack = write_pack({"train": source}, Path(folder, "pack"))
        curves = {
            name: losses(pack, precision=precision, kernels=kernels, steps=args.steps)
            for name, (precision, kernels) in RUNS.items()
        }
    for step in range(0, args.steps, max(1, args.steps // 6)):
        print(step, *(f"{name} {curve[step]:.4f}" for name, curve in curves.items()))
    exact = torch.tensor(curves["float32"])
    off = {name: float((torch.tensor(curve) - exact).abs().mean()) for name, curve in curves.items()}
    print(f"mean deviation of the loss from float32: {off['bfloat16']:.4g} with bfloat16, {off['fused']:.4g} fused")
    assert off["fused"] <= ALLOWED * off["bfloat16"]


if __name__ == "__main__":
    main()
