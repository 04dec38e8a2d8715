"""The kernels of a training step, compiled for a GPU without one: the interpreter accepts more.

Run by `test_kernels.py` in a process of its own; HPUNET_CAPABILITY chooses the GPU, by default an H100 or H200.
Kernels that differ only in sizes and strides of the maps are compiled once; HPUNET_ALL_KERNELS=1 (as in
`make test-kernels`) compiles all of them.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hpunet.kernels import (
    tile_sizes,
    triton_bilinear,
    triton_convolution,
    triton_geco,
    triton_heads,
    triton_kl,
    triton_loss,
    triton_maps,
    triton_random,
    triton_sampling,
)
from hpunet.kernels.network import FusedNetwork
from hpunet.kernels.sampler import FusedSampler
from hpunet.models.hpunet import HPUNet
from hpunet.models.punet import ProbUNet
from hpunet.objectives.geco import GECO
from hpunet.sampling.sample import reconstruct, sample

CAPABILITY = int(os.environ.get("HPUNET_CAPABILITY", "90"))
TARGET = GPUTarget("cuda", CAPABILITY, 32)
SHARED_BYTES = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}  # KiB per program, by NVIDIA's programming guide
MAX_SPILLED = 400 if CAPABILITY == 90 else 256  # bytes per thread; where tiles were measured, some spill a little
MODULES = (
    triton_bilinear, triton_convolution, triton_geco, triton_heads, triton_kl, triton_loss, triton_maps,
    triton_random, triton_sampling,
)  # fmt: skip
HELPERS = {"_patches", "_positive", "_row", "_add_product", "_corner", "_absorb", "_uniform", "_head_pixels"}
HELPERS |= {"_exp", "_class_scores", "_add_counts", "_leading_digits", "_softplus", "_log_sigma", "_gaussian_pairs"}
HELPERS |= {"_upright"}
SIZES = {"B", "H", "W", "IN", "OUT", "R", "C", "ROUNDS", *(f"W_{s}" for s in ("ROW", "TAP", "IN", "OUT"))}
SIZES |= {f"OUT_{stride}" for stride in ("TAP", "ROW", "COLUMN")}
FLOATS = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.float64: "*fp64"}
TYPES = {**FLOATS, torch.int32: "*i32", torch.int64: "*i64", torch.bool: "*u1"}
FEW: dict[str, Any] = {"in_channels": 1, "num_classes": 2}
ONE: dict[str, Any] = {**FEW, "latent_dims": (1,), "blocks_per_scale": 1}
NETWORKS = {  # model, size of the images, precision
    "narrow layers, large maps": (lambda: HPUNet(**ONE, channels=(24, 48)), 64, torch.bfloat16),
    "wide layers, maps down to one pixel": (lambda: HPUNet(**ONE, channels=(96, 192)), 2, torch.bfloat16),
    "float32": (lambda: HPUNet(**ONE, channels=(16, 24)), 4, torch.float32),
    "punet": (lambda: ProbUNet(**FEW, channels=(32, 64)), 32, torch.bfloat16),
}


class Compiler:
    """Replaces `launch`: compiles what it would run."""

    def __init__(self) -> None:
        self.compiled: dict[str, Any] = {}

    def __call__(self, kernel: Any, _grid: object, *args: Any, **options: Any) -> None:
        names = kernel.arg_names
        given = dict(zip(names, args, strict=False))
        signature = {name: "constexpr" if name in options else kind(given[name]) for name in names}
        seen = {n: v for n, v in options.items() if n not in SIZES or "HPUNET_ALL_KERNELS" in os.environ}
        if (key := f"{kernel.__name__} {signature} {seen}") in self.compiled:
            return
        how = {name: options.pop(name) for name in ("num_warps", "num_stages") if name in options}
        source = ASTSource(
            fn=kernel,
            signature=signature,
            constexprs={(names.index(name),): value for name, value in options.items()},
            attrs={(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name][0] == "*"},
        )
        self.compiled[key] = triton.compile(source, target=TARGET, options=how)


def kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return TYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32" if abs(value) < 2**31 else "i64"


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    """Shared by all tests, so that each kernel is compiled once."""
    compiler = Compiler()
    with pytest.MonkeyPatch.context() as monkeypatch:
        for module in MODULES:
            monkeypatch.setattr(module, "launch", compiler)
        monkeypatch.setattr(tile_sizes, "capability", lambda _device: divmod(CAPABILITY, 10))
        yield compiler


@pytest.mark.parametrize("name", NETWORKS)
def test_kernels_of_a_training_step_compile(compiler: Compiler, name: str, tmp_path: Path) -> None:
    make, size, dtype = NETWORKS[name]
    model, before = make(), set(compiler.compiled)
    noise = {}
    if isinstance(model, HPUNet):
        noise["prior_noise"] = [torch.randn(2, 3, *shape) for shape in model.latent_shapes(size, size)]
    image, labels = torch.rand(2, 1, size, size), torch.zeros(2, size, size, dtype=torch.long)
    output = FusedNetwork(model, dtype=dtype)(image=image, labels=labels, **noise)
    loss = output.logits.sum() + output.kl.sum()
    (loss if output.sample_logits is None else loss + output.sample_logits.sum()).backward()
    check_compiled(compiler, before, dtype=dtype, folder=tmp_path)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "punet"])
def test_kernels_of_sampling_compile(compiler: Compiler, name: str, tmp_path: Path) -> None:
    (make, size, dtype), before = NETWORKS[name], set(compiler.compiled)
    model = make()
    assert isinstance(model, HPUNet)
    model.orientations, model.check_values = 8, False
    image, given = torch.rand(1, 1, size, size), [s.fill_(torch.nan) for s in latents_of(model, size)]
    sampler = FusedSampler(model, dtype=dtype)
    for keep in (False, True):
        sample(sampler, image=image, num_samples=2, return_logits=keep, latents=given if keep else "sample")
    reconstruct(sampler, image=image, labels=torch.zeros(1, size, size, dtype=torch.long))
    check_compiled(compiler, before, dtype=dtype, folder=tmp_path)


def latents_of(model: HPUNet, size: int) -> list[Tensor]:
    return [torch.empty(1, 2, *shape) for shape in model.latent_shapes(size, size)]


def check_compiled(compiler: Compiler, before: set[str], *, dtype: torch.dtype, folder: Path) -> None:
    new = {key: compiler.compiled[key] for key in set(compiler.compiled) - before}
    assert new
    for key, compiled in new.items():
        if key.startswith("_convolve") and "*bf16" in key:
            assert "mma" in compiled.asm["ptx"]  # on tensor cores
            assert "cp.async" in compiled.asm["ptx"] or "'TAPS': 1" in key  # loads overlap with them
        assert not overwritten(compiled.asm["ttgir"]), key
        assert compiled.metadata.shared <= SHARED_BYTES[CAPABILITY] * 1024, key
        assert dtype == torch.float32 or spilled(compiled.asm["cubin"], folder) <= MAX_SPILLED, key


def spilled(cubin: bytes, folder: Path) -> int:
    """Bytes per thread that do not fit the registers."""
    file = folder / "kernel.cubin"
    file.write_bytes(cubin)
    command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(file)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return max(map(int, re.findall(r"STACK:(\d+)", text)))


@pytest.mark.parametrize("normal", [False, True])
def test_kernels_of_keyed_draws_compile(compiler: Compiler, normal: bool) -> None:
    triton_random.draw(start=-(2**40), step=torch.tensor(1), index=torch.arange(2), count=3, normal=normal)
    assert f"'NORMAL': {normal}" in list(compiler.compiled)[-1]


@pytest.mark.parametrize(("num_classes", "drawn", "k"), [(2, True, 327), (16, False, 327), (3, False, None)])
def test_kernels_of_the_loss_compile(compiler: Compiler, num_classes: int, drawn: bool, k: int | None) -> None:
    logits = torch.zeros(1, num_classes, 128, 128, requires_grad=True)
    labels, uniform = torch.zeros(1, 128, 128, dtype=torch.long), torch.zeros(1, 128, 128) if drawn else None
    term, _ = triton_loss.reconstruction(logits, labels=labels, valid=None, uniform=uniform, k=k)
    term.backward()
    last = [key for key in compiler.compiled if key.startswith("_cross_entropy")][-1]
    assert f"'STOCHASTIC': {drawn}" in last
    assert f"'BK': {4 if num_classes == 3 else num_classes}" in last


def test_kernels_of_geco_compile(compiler: Compiler) -> None:
    geco = GECO(kappa=0.05, lambda_max=2.0)
    geco.kernel = triton_geco.penalty
    rec = torch.ones((), requires_grad=True)
    terms = geco.combine(rec=rec, kl=torch.ones(2), num_kept=torch.tensor(3), batch_size=2)
    terms["loss"].backward()
    assert any(key.startswith("_penalty_gradient") for key in compiler.compiled)


def test_no_kernel_is_left_out(compiler: Compiler) -> None:
    """After the tests above."""
    kernels = {name for m in MODULES for name, v in vars(m).items() if isinstance(v, triton.JITFunction)}
    assert {key.split()[0] for key in compiler.compiled} == kernels - HELPERS


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


@pytest.mark.skipif(CAPABILITY != 90, reason="of Hopper's tensor cores")
def test_overwritten_operands_are_found() -> None:
    compiler = Compiler()
    maps = [torch.empty(64, 64, dtype=torch.bfloat16)] * 2
    compiler(multiplies_and_adds_up, (1,), *maps, torch.empty(64, 64), torch.empty(64), rounds=8, num_stages=3)
    assert all(overwritten(compiled.asm["ttgir"]) for compiled in compiler.compiled.values())


def overwritten(code: str) -> set[str]:
    """Operands that tensor cores may still read while the next ones are loaded over them.

    Triton keeps enough copies of operands that only tensor cores read, but not of those that are read elsewhere too.
    """
    if not re.search(r"warp_group_dot_wait .*pendings = [1-9]", code):
        return set()
    multiplied = {name for line in re.findall(r"warp_group_dot (%.*?) \{", code) for name in line.split(", ")}
    return multiplied & set(re.findall(r"local_load (%\w+)", code))
