"""The kernels compiled for an H100 or H200 without one, as a training step has them: the interpreter allows more.

Run by `test_kernels.py` in a process of its own: python tests/kernels/compiled.py
"""

import re
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hpunet.kernels import triton_bilinear as bilinear
from hpunet.kernels import triton_convolution as convolution
from hpunet.kernels import triton_maps as maps
from hpunet.kernels import triton_random as keyed
from hpunet.kernels.network import FusedNetwork
from hpunet.models.hpunet import HPUNet
from hpunet.models.punet import ProbUNet

HOPPER = GPUTarget("cuda", 90, 32)
HELPERS = {"_patches", "_positive", "_row", "_add_product", "_corner", "_absorb", "_uniform"}  # called by kernels
TYPES = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


class Compiler:
    """Takes the place of `launch` and compiles what it would run."""

    def __init__(self) -> None:
        self.compiled: dict[str, Any] = {}

    def __call__(self, kernel: Any, _grid: object, *args: Any, **options: Any) -> None:
        names = kernel.arg_names
        given = dict(zip(names, args, strict=False))
        signature = {name: "constexpr" if name in options else kind(given[name]) for name in names}
        if (key := f"{kernel.__name__} {signature} {options}") in self.compiled:
            return
        how = {name: options.pop(name) for name in ("num_warps", "num_stages") if name in options}
        source = ASTSource(
            fn=kernel,
            signature=signature,
            constexprs={(names.index(name),): value for name, value in options.items()},
            attrs={(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name][0] == "*"},
        )
        self.compiled[key] = triton.compile(source, target=HOPPER, options=how)


def kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return TYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32" if abs(value) < 2**31 else "i64"


def main() -> None:
    compiler = Compiler()
    bilinear.launch = convolution.launch = keyed.launch = maps.launch = compiler  # type: ignore[assignment]
    # Narrow layers on large maps, wide ones on small maps down to one pixel.
    few: dict[str, Any] = {"in_channels": 1, "num_classes": 2}
    one: dict[str, Any] = {**few, "latent_dims": (1,), "blocks_per_scale": 1}
    for model, size, dtype in (
        (HPUNet(**one, channels=(24, 48)), 64, torch.bfloat16),
        (HPUNet(**one, channels=(96, 192)), 2, torch.bfloat16),
        (HPUNet(**one, channels=(16, 24)), 4, torch.float32),
        (ProbUNet(**few, channels=(32, 64)), 32, torch.bfloat16),
    ):
        network = FusedNetwork(model, dtype=dtype)
        drawn = {}
        if isinstance(model, HPUNet):
            drawn["prior_noise"] = [torch.randn(2, 3, *shape) for shape in model.latent_shapes(size, size)]
        image, labels = torch.rand(2, 1, size, size), torch.zeros(2, size, size, dtype=torch.long)
        output = network(image=image, labels=labels, **drawn)
        loss = output.logits.sum() + output.kl.sum()
        (loss if output.sample_logits is None else loss + output.sample_logits.sum()).backward()
    for normal in (False, True):
        keyed.draw(start=-(2**40), step=torch.tensor(1), index=torch.arange(2), count=3, normal=normal)
    kernels = {key.split()[0] for key in compiler.compiled}
    modules = (bilinear, convolution, keyed, maps)
    assert kernels == {name for m in modules for name, v in vars(m).items() if is_kernel(v)} - HELPERS
    bad = Compiler()
    maps_of = [torch.empty(64, 64, dtype=torch.bfloat16)] * 2
    bad(multiplies_and_adds_up, (1,), *maps_of, torch.empty(64, 64), torch.empty(64), rounds=8, num_stages=3)
    assert all(overwritten(compiled.asm["ttgir"]) for compiled in bad.compiled.values())  # the check can fail
    for key, compiled in compiler.compiled.items():
        if key.startswith("_convolve") and "*bf16" in key:
            assert "mma" in compiled.asm["ptx"]  # on tensor cores
            assert "cp.async" in compiled.asm["ptx"] or "'TAPS': 1" in key  # loads overlap with them
        assert not overwritten(compiled.asm["ttgir"]), key
    print("the kernels compile")


@triton.jit
def multiplies_and_adds_up(a, b, out, sums, rounds: tl.constexpr):  # what no kernel of ours may do
    i, k = tl.arange(0, 64), tl.arange(0, 64)
    total = tl.zeros((64, 64), tl.float32)
    added = tl.zeros((64,), tl.float32)
    for step in tl.range(rounds):
        place = (step * 64 + k)[:, None] * 64 + i[None, :]
        left, right = tl.load(a + place), tl.load(b + place)
        added += tl.sum(right.to(tl.float32), axis=0)
        total = tl.dot(tl.trans(left), right, total)
    tl.store(out + i[:, None] * 64 + i[None, :], total)
    tl.store(sums + i, added)


def overwritten(code: str) -> set[str]:
    """What tensor cores may still read when it is loaded anew; Triton keeps enough copies of what they alone read."""
    if not re.search(r"warp_group_dot_wait .*pendings = [1-9]", code):
        return set()
    multiplied = {name for line in re.findall(r"warp_group_dot (%.*?) \{", code) for name in line.split(", ")}
    return multiplied & set(re.findall(r"local_load (%\w+)", code))


def is_kernel(value: object) -> bool:
    return isinstance(value, triton.JITFunction)


if __name__ == "__main__":
    main()
