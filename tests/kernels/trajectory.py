"""300 training steps on fused kernels and on plain torch: same seed, data and noise.

The loss may deviate from plain float32's by at most 1.5 times as much as plain bfloat16's does, on average.
Needs a GPU; run by `test_kernels.py`, or by hand with -s to see the losses.
"""

from pathlib import Path

import pytest
import torch

from hpunet.config.settings import load_settings
from hpunet.data.packs import write_pack
from hpunet.data.synthetic.source import open_synthetic
from hpunet.training.state import Training

ALLOWED = 1.5
STEPS = 300
RUNS = {"float32": ("fp32", "torch"), "bfloat16": ("bf16", "torch"), "fused": ("bf16", "fused")}


def losses(pack: Path, *, precision: str, kernels: str) -> list[float]:
    changes = [f"optimiser.precision={precision}", f"optimiser.kernels={kernels}", f"optimiser.iterations={STEPS}"]
    settings = load_settings("lidc-hpu", changes)
    training = Training(settings, pack_path=pack, run=pack.parent, device=torch.device("cuda"))
    found = []
    for terms, _ in training.run_steps():
        training.step += 1
        found.append(terms.loss.clone())
    return torch.stack(found).tolist()


@pytest.mark.gpu
def test_fused_losses_stay_as_close_to_float32_as_those_of_bfloat16(tmp_path: Path) -> None:
    source = open_synthetic("lesions", split="train", num_images=128, size=(180, 180))
    pack = write_pack({"train": source}, tmp_path / "pack")
    curves = {name: losses(pack, precision=precision, kernels=kernels) for name, (precision, kernels) in RUNS.items()}
    for step in range(0, STEPS, max(1, STEPS // 6)):
        print(step, *(f"{name} {curve[step]:.4f}" for name, curve in curves.items()))
    exact = torch.tensor(curves["float32"])
    off = {name: float((torch.tensor(curve) - exact).abs().mean()) for name, curve in curves.items()}
    print(f"mean deviation of the loss from float32: {off['bfloat16']:.4g} with bfloat16, {off['fused']:.4g} fused")
    assert off["fused"] <= ALLOWED * off["bfloat16"]
