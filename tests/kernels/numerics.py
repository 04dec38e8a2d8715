"""Rounding of fused residual blocks beside that of plain torch, against float64, for the blocks of every preset.

    python tests/kernels/numerics.py [--jobs 8]

Needs a GPU. Every output and gradient may be off by at most 1.5 times what plain torch is in the same precision
(relative L2): bfloat16 under autocast, and float32 without TF32.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from torch import Tensor, nn

from hpunet.config import load_settings, preset_names
from hpunet.kernels.plan import Beside, block_gradient, run_block
from hpunet.kernels.weights import Layer, Weights, channel_order
from hpunet.models.blocks import ResidualBlock, initialise
from hpunet.models.hpunet import HPUNet

ALLOWED = 1.5
KINDS = ("bf16", "fp32")
ODD = [(12, 24, 9, 15), (24, 24, 5, 7), (96, 192, 3, 3)]  # in, out, height, width


def shapes() -> list[tuple[int, int, int, int]]:
    """(in, out, height, width) of all residual blocks of all presets."""
    found = set(ODD)
    for preset in preset_names():
        settings = load_settings(preset)
        if settings.model.kind != "hpu":
            continue
        model = HPUNet(
            in_channels=1, num_classes=2, channels=settings.model.channels, latent_dims=settings.model.latent_dims
        )
        for net in (model.prior, model.posterior):
            for depth, stage in (
                *enumerate(net.encoder),
                *((len(model.channels) - 2 - i, stage) for i, stage in enumerate(net.decoder)),
            ):
                h, w = (side >> depth for side in settings.data.crop)
                for block in stage:  # type: ignore[union-attr]
                    found.add((block.convs[0].in_channels, block.project.out_channels, h, w))
    return sorted(found)


def plain(block: ResidualBlock, x: Tensor, gradient: Tensor, *, autocast: bool) -> dict[str, Tensor]:
    block.zero_grad(set_to_none=True)
    x = x.detach().to(torch.bfloat16 if autocast else x.dtype, memory_format=torch.channels_last).requires_grad_()
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
        out = block(x)
    out.backward(gradient.to(out.dtype))
    assert x.grad is not None
    return {"output": out, "input": x.grad} | {n: p.grad.clone() for n, p in block.named_parameters()}  # type: ignore[union-attr]


@torch.no_grad()
def fused(block: ResidualBlock, x: Tensor, gradient: Tensor, *, dtype: torch.dtype) -> dict[str, Tensor]:
    _, channels, h, w = x.shape
    layer = Layer([block], h, w, [channel_order((0, channels))])
    weights = Weights([layer], others=[[nn.Parameter(torch.zeros(1, device="cuda"))]], dtype=dtype, training=True)
    weights.prepare()

    def as_map(t: Tensor, width: int) -> Tensor:
        maps = torch.zeros(1, len(t), h, w, width, device="cuda", dtype=dtype)
        maps[0, ..., : t.shape[1]] = t.permute(0, 2, 3, 1)
        return maps

    x, gradient = as_map(x, layer.widths[0]), as_map(gradient, layer.widths[2])
    out, h1, h2 = run_block(layer, x)
    beside = Beside(x.device)
    back = block_gradient(layer, x, h1, h2, gradient, beside=beside)
    beside.finish()
    assert back is not None
    found = dict(zip(weights.parameters, weights.collect(), strict=True))
    named = {name: found[p].clone() for name, p in block.named_parameters()}
    maps = {"output": out[0, ..., : layer.out_channels], "input": back[0, ..., :channels]}
    return {name: t.permute(0, 3, 1, 2) for name, t in maps.items()} | named


def draw(shape: tuple[int, int, int, int, int], seed: int) -> dict[tuple[str, str], tuple[float, float]]:
    """(error by us, error by torch) of every tensor of a random block, by (precision, tensor)."""
    channels, width, h, w, batch = shape
    torch.manual_seed(seed)
    block = ResidualBlock(channels, width)
    initialise(block)
    block = block.to("cuda", memory_format=torch.channels_last)  # type: ignore[call-overload]
    x, gradient = torch.randn(batch, channels, h, w), torch.randn(batch, width, h, w)
    # What is given is the same in all precisions.
    x, gradient = (t.to("cuda", torch.bfloat16).float() for t in (x, gradient))
    results = {
        "bf16": (fused(block, x, gradient, dtype=torch.bfloat16), plain(block, x, gradient, autocast=True)),
        "fp32": (fused(block, x, gradient, dtype=torch.float32), plain(block, x, gradient, autocast=False)),
    }
    exact = plain(block.cpu().double(), x.cpu().double(), gradient.cpu().double(), autocast=False)
    exact = {name: value.detach().cuda() for name, value in exact.items()}

    def error(found: Tensor, name: str) -> float:
        return float((found.detach().double() - exact[name]).norm() / exact[name].norm())

    return {
        (kind, name): (error(us[name], name), error(by_torch[name], name))
        for kind, (us, by_torch) in results.items()
        for name in exact
    }


def compare(shape: tuple[int, int, int, int, int]) -> list[tuple[str, float, str]]:
    """(precision, error by us / error by torch, where) of every tensor; root mean squares of several draws."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_num_threads(1)
    channels, width, h, w, batch = shape
    draws = [draw(shape, seed) for seed in range(1 if h * w * batch >= 128 * 128 else 8)]
    found = []
    for kind, name in draws[0]:
        us, torchs = (sum(d[kind, name][i] ** 2 for d in draws) ** 0.5 / len(draws) ** 0.5 for i in (0, 1))
        where = f"{channels}→{width} at {h}×{w}, batch {batch}, {name}: {us:.2e} by us, {torchs:.2e} by torch"
        # Where torch is exact (a sum of one number), so are we, to the last bit of float32.
        found.append((kind, us / max(torchs, 2.0**-24), where))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=8)
    args = parser.parse_args()
    cases = [(*shape, batch) for shape in shapes() for batch in ((1, 3) if shape in ODD else (1,))]
    cases.sort(key=lambda case: case[2] * case[3])
    found = []
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:  # most of the time is compilation
        for rows in pool.map(compare, cases):
            for kind in KINDS:
                print(kind, *max((ratio, where) for k, ratio, where in rows if k == kind), flush=True)
            found += rows
    worst = 0.0
    for precision in KINDS:
        ratios = sorted(((ratio, where) for kind, ratio, where in found if kind == precision), reverse=True)
        worst = max(worst, ratios[0][0])
        print(f"{precision}: {len(ratios)} tensors, median ratio {ratios[len(ratios) // 2][0]:.2f}, worst:")
        for ratio, where in ratios[:5]:
            print(f"  {ratio:.2f}  {where}")
    assert worst <= ALLOWED
    print("rounding is no worse than plain torch's")


if __name__ == "__main__":
    main()
