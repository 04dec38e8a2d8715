"""`hpunet bench`: time training step, sampling, training loop, evaluation and augmentation of a preset.

Candidates of one question take turns, on random or synthetic data; speeds are relative to the first one.
"""

import math
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hpunet.bench.timing import Candidate, Timer
from hpunet.config.settings import Settings, load_settings
from hpunet.data.augment import augment
from hpunet.data.batch import Batch
from hpunet.data.packs import write_pack
from hpunet.data.synthetic.source import INFO, open_synthetic
from hpunet.data.types import SetInfo
from hpunet.errors import ConfigError
from hpunet.evaluation.images import fast_batch_size, read_item
from hpunet.evaluation.run import scored
from hpunet.evaluation.scorer import Scorer
from hpunet.kernels.dispatch import fast_sampler, fused_network, reason_against_fused, use_fused_loss
from hpunet.models.build import build_model
from hpunet.models.hpunet import HPUNet
from hpunet.models.punet import ProbUNet
from hpunet.sampling.sample import sample
from hpunet.training.build import autocast_for, build_objective, build_optimiser
from hpunet.training.state import Training
from hpunet.weights.run_state import describe_run

NUM_SAMPLES = 16
BATCH_ON_CPU = 4
_DATA = {"snemi3d": "neurites", "cityscapes": "streets"}  # by the first word of the preset; else lesions


@dataclass(frozen=True)
class Row:
    """One candidate's result for one question."""

    group: str
    question: str
    candidate: str
    unit: str
    value: float | None
    """Median over the repeats; None if the candidate failed."""
    speed: float | None
    spread: float | None
    """(Slowest − fastest repeat) / median."""
    peak_mib: float | None
    failure: str | None
    seconds: list[float]


@dataclass(frozen=True)
class Workload:
    """What is measured, and the timer."""

    settings: Settings
    kind: str
    timer: Timer

    @property
    def info(self) -> SetInfo:
        """Classes and channels."""
        return INFO[self.kind]

    @property
    def batch(self) -> int:
        """Images per step."""
        return self.settings.optimiser.batch_size

    @property
    def source_size(self) -> tuple[int, int]:
        """Size of the images that crops are cut from: 180 pixels for crops of 128, as in LIDC."""
        h, w = self.settings.data.crop
        return h * 45 // 32, w * 45 // 32

    def model(self, *, channels_last: bool = True) -> HPUNet | ProbUNet:
        """The preset's network, always with the same weights."""
        torch.manual_seed(0)
        sizes: dict[str, Any] = {"in_channels": self.info.in_channels, "num_classes": self.info.num_classes}
        model = build_model(self.settings.model, **sizes, channels_last=channels_last)
        model.check_values = False
        return model.to(self.timer.device)

    def images(self, count: int) -> Tensor:
        """Random images of the crop's size."""
        return torch.rand(count, self.info.in_channels, *self.settings.data.crop, device=self.timer.device)


class _CountsOnCpu(Scorer):
    """Scores maps that are copied to the CPU, whatever draws them."""

    counts_on_device = False


def run_bench(
    preset: str,
    *,
    device: torch.device,
    batch: int | None = None,
    only: Sequence[str] = (),
    repeats: int = 7,
    say: Callable[[str], None] = lambda _words: None,
) -> Iterator[list[Row]]:
    """Yield the rows of each question as soon as they are measured, those that take least to prepare first."""
    if unknown := set(only) - GROUPS.keys():
        raise ConfigError(f"only: expected some of {', '.join(GROUPS)}, got {unknown.pop()!r}")
    on_gpu = device.type == "cuda"
    usual = load_settings(preset).optimiser
    batch = batch or (usual.batch_size // usual.accumulation_steps if on_gpu else BATCH_ON_CPU)
    changes = ["optimiser.iterations=1_000_000_000", "optimiser.boundaries=[]", "optimiser.learning_rates=[1e-4]"]
    changes += ["optimiser.accumulation_steps=1", "optimiser.compile=false", "data.extrapolate=false"]
    changes += [f"optimiser.batch_size={batch}"]
    changes += ["optimiser.precision=bf16", "optimiser.cuda_graph=true"] if on_gpu else []
    kind = _DATA.get(preset.split("-")[0], "lesions")
    work = Workload(load_settings(preset, changes), kind, Timer(device, repeats=repeats, say=say))
    for name, measure in GROUPS.items():
        if not only or name in only:
            questions = iter(measure(work))
            while True:
                with work.timer.stream():
                    rows = next(questions, None)
                if rows is None:
                    break
                yield rows


def about(device: torch.device) -> dict[str, Any]:
    """Hardware, versions and date."""
    found = describe_run()
    if device.type == "cpu":
        found["device"] = f"{found['device']} CPU ({found['cpu_capability']}, {found['num_threads']} threads)"
    return {**found, "date": datetime.now(UTC).date().isoformat()}


def _rows(
    group: str, question: str, candidates: Sequence[Candidate], *, unit: str, count: int = 1, memory: bool = False
) -> list[Row]:
    """Rows of a question. `count`: units per call, unless the unit is ms."""
    first, rows = candidates[0].median, []
    for candidate in candidates:
        seconds, value, speed, spread = candidate.median, None, None, None
        if seconds is not None:
            value = 1e3 * seconds if unit == "ms" else count / seconds
            speed = None if first is None else first / seconds
            spread = (max(candidate.seconds) - min(candidate.seconds)) / seconds
        peak = candidate.peak_mib if memory else None
        measured = candidate.name, unit, value, speed, spread, peak, candidate.failure, candidate.seconds
        rows.append(Row(group, question, *measured))
    return rows


def bare_step(
    work: Workload,
    *,
    precision: str = "fp32",
    channels_last: bool = True,
    wrap: Callable[[nn.Module], Any] = lambda model: model,
    fused: bool = False,
) -> Callable[[], None]:
    """Forward, loss, backward and Adam on random images and labels drawn in the step."""
    device, (h, w) = work.timer.device, work.settings.data.crop
    model = work.model(channels_last=channels_last)
    loss = build_objective(work.settings.objective, num_pieces=1).to(device)
    network, shapes = _fused(work, model) if fused else wrap(model), model.latent_shapes(h, w)
    if fused:
        use_fused_loss(loss)
    optimiser = build_optimiser(work.settings.optimiser, device=device, model=model, loss=loss, network=network)

    def step() -> None:
        image = work.images(work.batch)
        labels = torch.randint(work.info.num_classes, (work.batch, h, w), device=device)
        noise = [torch.randn(work.batch, *shape, device=device) for shape in shapes]
        optimiser.zero_grad(set_to_none=True)
        with autocast_for(precision, device)():  # also sets TF32 for the process
            output = network(image=image, labels=labels, noise=noise)
        loss(output, labels=labels).loss.backward()
        optimiser.step()

    return step


def _fused(work: Workload, model: nn.Module) -> nn.Module:
    if reason := reason_against_fused(model, device=work.timer.device):
        raise ConfigError(reason)
    return fused_network(model, size=work.settings.data.crop)


def _train(work: Workload) -> Iterator[list[Row]]:
    prepare, step = work.timer.prepare, partial(bare_step, work)
    if work.timer.on_gpu:
        in_bf16 = partial(step, precision="bf16")
        candidates = [
            prepare("fp32 eager, no TF32", step),
            prepare("bf16 + CUDA graph", in_bf16, graph=True),
            prepare("torch.compile (bf16) + CUDA graph", partial(in_bf16, wrap=torch.compile), graph=True),
            prepare("fused (bf16) + CUDA graph", partial(in_bf16, fused=True), graph=True),
        ]
    else:
        candidates = [prepare("plain NCHW", partial(step, channels_last=False)), prepare("default", step)]
    work.timer.measure(candidates)
    yield _rows("train", f"training step, batch {work.batch}", candidates, unit="ms", memory=True)


def _sample(work: Workload) -> Iterator[list[Row]]:
    prepare, device = work.timer.prepare, work.timer.device

    def plain(count: int, *, channels_last: bool = True, shared: bool = True) -> Callable[[], object]:
        model = work.model(channels_last=channels_last)
        if not shared:
            model.logits.register_forward_hook(lambda *_: None)  # networks with hooks sample as they are

        def draw() -> object:
            with autocast_for("bf16", device)():
                return sample(model, image=work.images(count), num_samples=NUM_SAMPLES, return_logits=False)

        return draw

    def fused(count: int) -> Callable[[], object]:
        model = fast_sampler(work.model(), kernels="fused", device=device)
        return lambda: sample(model, image=work.images(count), num_samples=NUM_SAMPLES, return_logits=False)

    for count in dict.fromkeys((1, work.batch)):
        if work.timer.on_gpu:
            candidates = [
                prepare("bf16 eager", partial(plain, count)),
                prepare("bf16 + CUDA graph", partial(plain, count), graph=True),
                prepare("fused (bf16)", partial(fused, count)),
                prepare("fused (bf16) + CUDA graph", partial(fused, count), graph=True),
            ]
        else:
            candidates = [
                prepare("plain NCHW", partial(plain, count, channels_last=False)),
                prepare("channels last", partial(plain, count, shared=False)),
                prepare("default (features shared)", partial(plain, count)),
                prepare("fused (bf16)", partial(fused, count)),
            ]
        work.timer.measure(candidates)
        images, unit = ("one image", "ms") if count == 1 else (f"{count} images", "hypotheses/s")
        how: dict[str, Any] = {"unit": unit, "count": count * NUM_SAMPLES, "memory": True}
        yield _rows("sample", f"{NUM_SAMPLES} hypotheses of {images}", candidates, **how)


def _end_to_end(work: Workload) -> Iterator[list[Row]]:
    """Steps of the training loop: images from a pack, augmentation, checks, logging."""
    device, prepare, on_gpu = work.timer.device, work.timer.prepare, work.timer.on_gpu
    can_fuse = reason_against_fused(work.model(), device=device) is None
    bare = partial(bare_step, work, precision=work.settings.optimiser.precision)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        work.timer.say("making synthetic images")
        source = open_synthetic(work.kind, split="train", num_images=2 * work.batch, size=work.source_size)
        pack = write_pack({"train": source}, Path(folder, "pack"))

        def loop() -> Callable[[], None]:
            training = Training(work.settings, pack_path=pack, run=Path(folder), device=device)
            steps = training.run_steps()

            def step() -> None:
                terms, norm = next(steps)
                training.step += 1
                if training.step % work.settings.logging.log_every == 0 or not on_gpu:
                    training.numbers(terms, norm)

            return step

        candidates = [
            prepare("bare step", partial(bare, fused=can_fuse), graph=True),
            prepare("training loop", loop),
        ]
        work.timer.measure(candidates, calls=work.settings.logging.log_every)
    yield _rows("end-to-end", f"training with its data, batch {work.batch}", candidates, unit="steps/s")


def _evaluate(work: Workload) -> Iterator[list[Row]]:
    crop, size = work.settings.data.crop, fast_batch_size(work.timer.device)
    count = 4 * size if work.timer.on_gpu else work.batch
    source = open_synthetic(work.kind, split="val", num_images=count, size=crop)
    items = [read_item(source, index, work.info) for index in range(count)]

    def scoring(kernels: str, kind: type[Scorer] = Scorer) -> Callable[[], None]:
        model, device = work.model().eval(), work.timer.device
        how: dict[str, Any] = {"device": device, "sampler": fast_sampler(model, kernels=kernels, device=device)}
        scorer = kind(model=model, info=work.info, crop=crop, num_samples=NUM_SAMPLES, **how)

        def score() -> None:
            autocast_for("fp32", device)
            deque(scored(scorer, source, (items[i : i + size] for i in range(0, len(items), size))), maxlen=0)

        return score

    ways: dict[str, Any] = {"default": partial(scoring, "torch")}
    if work.timer.on_gpu:
        ways = {
            "float32": ways["default"],
            "fused (bf16), metrics on the CPU": partial(scoring, "fused", _CountsOnCpu),
        }
        ways["fused (bf16)"] = partial(scoring, "fused")
    candidates = [work.timer.prepare(name, build) for name, build in ways.items()]
    work.timer.measure(candidates, calls=3)
    question = f"evaluation, {NUM_SAMPLES} samples: sampling and metrics"
    yield _rows("evaluate", question, candidates, unit="images/s", count=count)


def _augment(work: Workload) -> Iterator[list[Row]]:
    device, count = work.timer.device, 8 * work.batch
    (h, w), info = work.source_size, work.info
    batch = Batch(
        image=torch.rand(count, info.in_channels, h, w, device=device),
        labels=torch.randint(2, (count, info.num_graders, h, w), dtype=torch.int32, device=device),
        valid=torch.ones(count, h, w, dtype=torch.bool, device=device),
        graders=torch.ones(count, info.num_graders, dtype=torch.bool, device=device),
    )
    step, index = torch.zeros((), dtype=torch.int64, device=device), torch.arange(count, device=device)
    crop, settings = work.settings.data.crop, work.settings.augmentation

    def ours() -> Batch:
        step.add_(1)
        return augment(batch, settings=settings, crop_size=crop, seed=0, step=step, index=index)

    candidates = [
        work.timer.prepare("affine_grid + grid_sample", lambda: partial(plain_warp, batch, crop), graph=True),
        work.timer.prepare("hpunet", lambda: ours, graph=True),
    ]
    work.timer.measure(candidates)
    question = f"augmentation, {h}×{w} to {crop[0]}×{crop[1]}, labels of {info.num_graders}"
    yield _rows("augment", question, candidates, unit="images/s", count=count)


def plain_warp(batch: Batch, crop: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """A straightforward version of the same warps, without validity masks and keyed noise."""
    (b, _, h, w), (rows, columns), device = batch.image.shape, crop, batch.image.device
    angle, scale, shear, shift_y, shift_x = (2 * torch.rand(5, b, device=device) - 1).unbind()
    flip_y, flip_x = torch.randint(2, (2, b), device=device) * 2 - 1
    cos, sin = 1.25**scale * (math.pi * angle).cos(), 1.25**scale * (math.pi * angle).sin()
    to_x = [cos * flip_x * columns, (0.1 * shear * cos - sin) * flip_y * rows, shift_x * (w - columns)]
    to_y = [sin * flip_x * columns, (0.1 * shear * sin + cos) * flip_y * rows, shift_y * (h - rows)]
    affine = torch.stack([torch.stack(to_x, dim=1) / w, torch.stack(to_y, dim=1) / h], dim=1)
    elastic = 0.08 * columns / w * torch.randn(b, 2, 5, 5, device=device)
    grid = F.affine_grid(affine, [b, 1, *crop], align_corners=False)
    grid = grid + F.interpolate(elastic, crop, mode="bicubic", align_corners=True).permute(0, 2, 3, 1)
    image = F.grid_sample(batch.image, grid, align_corners=False)
    labels = F.grid_sample(batch.labels.float(), grid, mode="nearest", align_corners=False)
    return image, labels.int()


GROUPS: dict[str, Callable[[Workload], Iterable[list[Row]]]] = {"augment": _augment, "sample": _sample}
GROUPS |= {"train": _train, "end-to-end": _end_to_end, "evaluate": _evaluate}
"""By the time until their first row: torch.compile takes minutes for a training step."""
