"""What `hpunet bench` measures: a preset's training step, its sampling, the loop around it, evaluation, augmentation.

All contestants for a question are measured in one run, in turn, on fresh data; the first one is what the others are
compared with. Data are random or synthetic: what pixels show does not matter to the speed.
"""

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hpunet.bench.timing import Contestant, Stopwatch
from hpunet.config.settings import Settings, load_settings
from hpunet.data.augment import augment
from hpunet.data.batch import Batch
from hpunet.data.packs import write_pack
from hpunet.data.synthetic.source import INFO, open_synthetic
from hpunet.data.types import SetInfo
from hpunet.errors import ConfigError
from hpunet.evaluation.run import scored
from hpunet.evaluation.scorer import Scorer, read_item
from hpunet.evaluation.scoring import fast_batch_size
from hpunet.kernels.dispatch import fast_sampler, fused_network, reason_against_fused
from hpunet.models.build import build_model
from hpunet.models.hpunet import HPUNet
from hpunet.models.punet import ProbUNet
from hpunet.sampling.sample import sample
from hpunet.training.build import autocast_for, build_example_builder, build_objective, build_optimiser
from hpunet.training.run import Training
from hpunet.weights.run_state import describe_run

NUM_SAMPLES = 16
BATCH_ON_CPU = 4
_DATA = {"snemi3d": "neurites", "cityscapes": "streets"}
"""Synthetic data that stand for those of presets of this name; lesions for all others."""


@dataclass(frozen=True)
class Row:
    """One contestant's answer to one question."""

    group: str
    question: str
    contestant: str
    unit: str
    value: float | None
    """The median of the repeats; None if it could not be measured."""
    speed: float | None
    """How many times as fast as the question's first contestant."""
    spread: float | None
    """Slowest minus fastest repeat, as a share of the median."""
    peak_mib: float | None
    why_not: str | None
    seconds: list[float]
    """A call's, in each repeat."""


@dataclass(frozen=True)
class Workload:
    """What is measured, and with which stopwatch."""

    settings: Settings
    kind: str
    watch: Stopwatch

    @property
    def info(self) -> SetInfo:
        """Classes and channels."""
        return INFO[self.kind]

    @property
    def batch(self) -> int:
        """Images a step."""
        return self.settings.optimiser.batch_size

    @property
    def source_size(self) -> tuple[int, int]:
        """Images that crops are cut from: 180 pixels for crops of 128, as LIDC's."""
        h, w = self.settings.data.crop
        return h * 45 // 32, w * 45 // 32

    def model(self, *, channels_last: bool = True) -> HPUNet | ProbUNet:
        """The preset's network, always with the same weights."""
        torch.manual_seed(0)
        model = build_model(
            self.settings.model,
            in_channels=self.info.in_channels,
            num_classes=self.info.num_classes,
            channels_last=channels_last,
        )
        model.check_values = False
        return model.to(self.watch.device)

    def images(self, count: int) -> Tensor:
        """Random ones, of the crop's size."""
        return torch.rand(count, self.info.in_channels, *self.settings.data.crop, device=self.watch.device)


def run_bench(
    preset: str,
    *,
    device: torch.device,
    batch: int | None = None,
    only: Sequence[str] = (),
    repeats: int = 7,
    say: Callable[[str], None] = lambda _words: None,
) -> Iterator[list[Row]]:
    """The rows of one group after the other."""
    if unknown := set(only) - GROUPS.keys():
        raise ConfigError(f"only: expected some of {', '.join(GROUPS)}, got {unknown.pop()!r}")
    on_gpu = device.type == "cuda"
    batch = batch or (None if on_gpu else BATCH_ON_CPU)
    changes = ["optimiser.iterations=1_000_000_000", "optimiser.boundaries=[]", "optimiser.learning_rates=[1e-4]"]
    changes += ["optimiser.accumulation_steps=1", "optimiser.compile=false", "data.extrapolate=false"]
    changes += [f"optimiser.batch_size={batch}"] if batch else []
    changes += ["optimiser.precision=bf16", "optimiser.cuda_graph=true"] if on_gpu else []
    kind = _DATA.get(preset.split("-")[0], "lesions")
    work = Workload(load_settings(preset, changes), kind, Stopwatch(device, repeats=repeats, say=say))
    for name, measure in GROUPS.items():
        if not only or name in only:
            with work.watch.on_its_stream():
                rows = list(measure(work))
            yield rows


def about(device: torch.device) -> dict[str, Any]:
    """Where and when numbers were taken."""
    found = describe_run()
    if device.type == "cpu":
        found["device"] = f"{found['device']} CPU ({found['cpu_capability']}, {found['num_threads']} threads)"
    return {**found, "date": datetime.now(UTC).date().isoformat()}


def _rows(
    group: str, question: str, contestants: Sequence[Contestant], *, unit: str, count: int = 1, memory: bool = False
) -> Iterator[Row]:
    """`count` is how much of the unit a call does; without one a call's milliseconds are given."""
    first = contestants[0].median
    for contestant in contestants:
        seconds, value, speed, spread = contestant.median, None, None, None
        if seconds is not None:
            value = 1e3 * seconds if unit == "ms" else count / seconds
            speed = None if first is None else first / seconds
            spread = (max(contestant.seconds) - min(contestant.seconds)) / seconds
        yield Row(
            group=group,
            question=question,
            contestant=contestant.name,
            unit=unit,
            value=value,
            speed=speed,
            spread=spread,
            peak_mib=contestant.peak_mib if memory else None,
            why_not=contestant.why_not,
            seconds=contestant.seconds,
        )


def bare_step(
    work: Workload,
    *,
    precision: str = "fp32",
    channels_last: bool = True,
    wrap: Callable[[nn.Module], Any] = lambda model: model,
) -> Callable[[], None]:
    """Forward, objective, backward and Adam on images and labels that are drawn in the step."""
    device, (h, w) = work.watch.device, work.settings.data.crop
    model = work.model(channels_last=channels_last)
    loss = build_objective(work.settings.objective, num_pieces=1).to(device)
    network, shapes = wrap(model), model.latent_shapes(h, w)
    how = {"model": model, "loss": loss, "network": network}
    optimiser = build_optimiser(work.settings.optimiser, device=device, **how)

    def step() -> None:
        image = work.images(work.batch)
        labels = torch.randint(work.info.num_classes, (work.batch, h, w), device=device)
        noise = [torch.randn(work.batch, *shape, device=device) for shape in shapes]
        optimiser.zero_grad(set_to_none=True)
        with autocast_for(precision, device)():  # in every step, since it also sets TF32 for the process
            output = network(image=image, labels=labels, noise=noise)
        loss(output, labels=labels).loss.backward()
        optimiser.step()

    return step


def _fused(work: Workload) -> Callable[[nn.Module], nn.Module]:
    def wrap(model: nn.Module) -> nn.Module:
        if reason := reason_against_fused(model, device=work.watch.device):
            raise ConfigError(reason)
        return fused_network(model, size=work.settings.data.crop)

    return wrap


def _train(work: Workload) -> Iterator[Row]:
    ready, step = work.watch.ready, partial(bare_step, work)
    if work.watch.on_gpu:
        in_bf16 = partial(step, precision="bf16")
        contestants = [
            ready("fp32 eager, no TF32", step),
            ready("bf16 + CUDA graph", in_bf16, graph=True),
            ready("torch.compile (bf16) + CUDA graph", partial(in_bf16, wrap=torch.compile), graph=True),
            ready("fused (bf16) + CUDA graph", partial(in_bf16, wrap=_fused(work)), graph=True),
        ]
    else:
        contestants = [
            ready("plain NCHW", partial(step, channels_last=False)),
            ready("default", step),
        ]
    work.watch.race(contestants)
    yield from _rows("train", f"training step, batch {work.batch}", contestants, unit="ms", memory=True)


def _sample(work: Workload) -> Iterator[Row]:
    ready, device = work.watch.ready, work.watch.device

    def plain(count: int, *, channels_last: bool = True) -> Callable[[], object]:
        model = work.model(channels_last=channels_last)

        def draw() -> object:
            with autocast_for("bf16", device)():
                return sample(model, image=work.images(count), num_samples=NUM_SAMPLES, return_logits=False)

        return draw

    def fused(count: int) -> Callable[[], object]:
        model = fast_sampler(work.model(), kernels="fused", device=device)
        return lambda: sample(model, image=work.images(count), num_samples=NUM_SAMPLES, return_logits=False)

    for count in dict.fromkeys((1, work.batch)):
        if work.watch.on_gpu:
            contestants = [
                ready("bf16 eager", partial(plain, count)),
                ready("bf16 + CUDA graph", partial(plain, count), graph=True),
                ready("fused (bf16)", partial(fused, count)),
                ready("fused (bf16) + CUDA graph", partial(fused, count), graph=True),
            ]
        else:
            contestants = [
                ready("plain NCHW", partial(plain, count, channels_last=False)),
                ready("default", partial(plain, count)),
            ]
        work.watch.race(contestants)
        if count == 1:
            yield from _rows("sample", f"{NUM_SAMPLES} hypotheses of one image", contestants, unit="ms", memory=True)
        else:
            question, total = f"{NUM_SAMPLES} hypotheses of {count} images", count * NUM_SAMPLES
            yield from _rows("sample", question, contestants, unit="hypotheses/s", count=total, memory=True)


def _end_to_end(work: Workload) -> Iterator[Row]:
    """The real loop's steps: images from a pack, augmentation, guard, what is logged."""
    device, ready, on_gpu = work.watch.device, work.watch.ready, work.watch.on_gpu
    can_fuse = reason_against_fused(work.model(), device=device) is None
    bare = partial(bare_step, work, precision=work.settings.optimiser.precision)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        work.watch.say("making synthetic images")
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

        contestants = [
            ready("bare step", partial(bare, wrap=_fused(work)) if can_fuse else bare, graph=True),
            ready("training loop", loop),
        ]
        work.watch.race(contestants, calls=work.settings.logging.log_every)
    yield from _rows("end-to-end", f"training with its data, batch {work.batch}", contestants, unit="steps/s")


def _evaluate(work: Workload) -> Iterator[Row]:
    crop, size = work.settings.data.crop, fast_batch_size(work.watch.device)
    count = 4 * size if work.watch.on_gpu else work.batch
    source = open_synthetic(work.kind, split="val", num_images=count, size=crop)
    items = [read_item(source, index, work.info) for index in range(count)]

    def scoring(kernels: str) -> Callable[[], None]:
        model = work.model().eval()
        scorer = Scorer(
            model=model,
            info=work.info,
            crop=crop,
            num_samples=NUM_SAMPLES,
            device=work.watch.device,
            sampler=fast_sampler(model, kernels=kernels, device=work.watch.device),
        )

        def score() -> None:
            autocast_for("fp32", work.watch.device)
            for _rows in scored(scorer, source, (items[i : i + size] for i in range(0, len(items), size))):
                pass

        return score

    names = {"float32": "torch", "fused (bf16)": "fused"} if work.watch.on_gpu else {"default": "torch"}
    contestants = [work.watch.ready(name, partial(scoring, kernels)) for name, kernels in names.items()]
    work.watch.race(contestants, calls=3)
    question = f"evaluation, {NUM_SAMPLES} samples: sampling and metrics"
    yield from _rows("evaluate", question, contestants, unit="images/s", count=count)


def _augment(work: Workload) -> Iterator[Row]:
    device, count = work.watch.device, 8 * work.batch
    (h, w), info = work.source_size, work.info
    batch = Batch(
        image=torch.rand(count, info.in_channels, h, w, device=device),
        labels=torch.randint(2, (count, info.num_graders, h, w), dtype=torch.int32, device=device),
        valid=torch.ones(count, h, w, dtype=torch.bool, device=device),
        graders=torch.ones(count, info.num_graders, dtype=torch.bool, device=device),
    )
    step, index = torch.zeros((), dtype=torch.int64, device=device), torch.arange(count, device=device)
    example_builder = build_example_builder(work.settings, info=info)

    def ours() -> Batch:
        step.add_(1)
        key: dict[str, Any] = {"seed": 0, "step": step, "index": index}
        return augment(batch, settings=example_builder.augmentation, crop_size=example_builder.crop, **key)

    contestants = [
        work.watch.ready(
            "affine_grid + grid_sample", lambda: partial(plain_warp, batch, example_builder.crop), graph=True
        ),
        work.watch.ready("hpunet", lambda: ours, graph=True),
    ]
    work.watch.race(contestants)
    question = (
        f"augmentation, {h}×{w} to {example_builder.crop[0]}×{example_builder.crop[1]}, labels of {info.num_graders}"
    )
    yield from _rows("augment", question, contestants, unit="images/s", count=count)


def plain_warp(batch: Batch, crop: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The same kinds of warps as one would write them first: no validity, no keys, labels as floats on the way."""
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


GROUPS: dict[str, Callable[[Workload], Iterable[Row]]] = {
    "train": _train,
    "sample": _sample,
    "end-to-end": _end_to_end,
    "evaluate": _evaluate,
    "augment": _augment,
}
