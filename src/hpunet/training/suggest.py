"""`hpunet init`: profile the data and write settings chosen for them, with a comment explaining each.

The rules follow the paper (App. C and D) where it has a number for such data; comments name our own rules.
"""

import math
import shlex
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tomlkit

from hpunet.data.folder.patients import patient_warning
from hpunet.data.open import open_splits, with_pack_options
from hpunet.data.packs import Pack, Progress
from hpunet.data.types import Sample, SetInfo, Source
from hpunet.errors import DataError
from hpunet.training.patches import MAX_LONG, MAX_SHORT, MAX_VOXELS, SMALL_VOXELS, Patch, choose_crop, choose_patch

BATCH_PIXELS = 24 * 256**2  # pixels in a batch, as in the paper on SNEMI3D
LARGE_CROP = 256**2  # crops of more pixels get fewer blocks and recomputed activations
SMALL_CROP, SMALL_BATCH = 128, 8  # upper limits for a first try on a CPU
RESIDENT_BYTES = 8 * 2**30  # larger data are not expected to fit on the GPU

ModelKind = Literal["hpu", "punet"]


@dataclass(frozen=True)
class DatasetProfile:
    """Sizes and classes of a dataset."""

    info: SetInfo
    num_train: int
    num_val: int
    smallest: tuple[int, ...]  # (depth,) height and width, each over all training and validation images
    largest: tuple[int, ...]
    patient_warning: str | None = None

    @property
    def has_one_size(self) -> bool:
        """Whether all images have the same size."""
        return self.smallest == self.largest

    @property
    def is_street_like(self) -> bool:
        """Wide and in colour: such images have a top and a bottom."""
        return not self.has_volumes and self.info.in_channels == 3 and self.smallest[1] >= 1.5 * self.smallest[0]

    @property
    def has_volumes(self) -> bool:
        """Whether the data are volumes, not images."""
        return self.info.ndim == 3

    @property
    def samples(self) -> str:
        """What the data are called."""
        return "volumes" if self.has_volumes else "images"


@dataclass(frozen=True)
class Setting:
    """One setting and the reason for its value."""

    key: str
    value: Any
    why: str


def profile_dataset(where: str, *, options: Mapping[str, Any], progress: Progress | None = None) -> DatasetProfile:
    """Read every training and validation image once, for its size; a pack knows its sizes."""
    splits = open_splits(where, options=options)
    for split in ("train", "val"):
        if split not in splits:
            how = "see docs/reference/formats.md (data.csv, val_every=10, slices.val=[16,18])"
            raise DataError(f"{where}: has no {split} images, only {', '.join(splits)}; training needs both: {how}")
    sizes = {size for split in ("train", "val") for size in _sizes(splits[split], progress)}
    by_axis = list(zip(*sizes, strict=True))
    return DatasetProfile(
        info=splits["train"].info,
        num_train=len(splits["train"]),
        num_val=len(splits["val"]),
        smallest=tuple(map(min, by_axis)),
        largest=tuple(map(max, by_axis)),
        patient_warning=patient_warning(list(splits.values()), options=with_pack_options(where, options)),
    )


def _sizes(source: Source, progress: Progress | None) -> set[tuple[int, ...]]:
    if isinstance(source, Pack):
        return set(source.sizes)
    samples: Iterable[Sample] = (source[index] for index in range(len(source)))
    if progress is not None:
        samples = progress(samples, len(source), f"looking at {source.split}")
    return {sample.valid.shape for sample in samples}


def choose_kappa(info: SetInfo) -> float:
    """GECO's κ for the number of random ids (a line through the paper's two values) or classes (paper's for two)."""
    if info.has_instances:
        return round(0.14 + 0.39 * math.log(info.num_random_ids), 2)
    return round(0.05 * math.log2(max(2, info.num_classes)), 2)


def suggest(
    look: DatasetProfile,
    *,
    model: ModelKind,
    options: Mapping[str, Any],
    crop: int | None = None,
    small: bool = False,
) -> dict[str, list[Setting]]:
    """Settings by section; `crop` limits the crop's sides, `small` is for a first try on a CPU."""
    limit = crop or (SMALL_CROP if small else MAX_LONG)
    if look.has_volumes:
        most = SMALL_VOXELS if small and crop is None else MAX_VOXELS
        patch = choose_patch(look.smallest, spacing=look.info.spacing, max_voxels=most, limit=limit)
    else:
        size, scales = choose_crop(look.smallest, limit=limit)
        patch = Patch(size, [(2, 2)] * (scales - 1))
    batch_size = _batch_size(patch, look.num_train)
    sections = {
        "model": _model(look.info, model, patch=patch),
        "data": _data(look, crop=patch.size, limit=limit, options=options),
        "augmentation": _augmentation(look, crop=patch.size),
        "objective": _objective(look.info, model),
        "optimiser": _optimiser(look, model, patch=patch, batch_size=batch_size),
        "logging": _logging(look, patch=patch, iterations=_iterations(look.num_train, batch_size)),
    }
    return _smaller(sections, look, model) if small else sections


def _smaller(sections: dict[str, list[Setting]], look: DatasetProfile, model: ModelKind) -> dict[str, list[Setting]]:
    """The same with a small network and a short training for a CPU, unlike the paper."""
    longer = look.info.has_instances and model == "hpu"  # ids are slow to learn
    iterations, rates = (5000, [1e-3, 4e-4, 5e-5]) if longer else (2000, [5e-4, 2e-4, 5e-5])
    (scales,) = (len(setting.value) for setting in sections["model"] if setting.key == "channels")
    base = 8 if look.has_volumes else 16
    widths = [base * min(4, 2**i) for i in range(scales)]
    why = "Small, for a first try on a CPU (--small)"
    changes = {
        "channels": (widths, f"{why}: {scales} scales whose widths start at {base} and double to {4 * base}."),
        "blocks_per_scale": (1, f"{why}."),
        "iterations": (iterations, f"{why}; results improve for much longer."),
        "batch_size": (min(SMALL_BATCH, look.num_train), f"{why}."),
        "learning_rates": (rates, f"{why}: Adam's, one after the other; smaller networks bear larger ones."),
        "validate_every": (iterations // 4, "Iterations between two validations."),
        "validate_images": (min(20, look.num_val), f"{why}; always the same ones."),
    }
    return {
        name: [Setting(s.key, *changes[s.key]) if s.key in changes else s for s in settings]
        for name, settings in sections.items()
    }


def _batch_size(patch: Patch, num_train: int) -> int:
    """32 as on LIDC, fewer for large crops; a multiple of 4, for several processes, unless there are few images.

    Of volumes at least 2, and not fewer if there are few: each step cuts other crops.
    """
    if len(patch.size) == 3:
        return min(32, max(2, BATCH_PIXELS // patch.positions // 2 * 2))
    fitting = min(32, max(4, BATCH_PIXELS // patch.positions // 4 * 4))
    return min(fitting, num_train)


def _iterations(num_train: int, batch_size: int) -> int:
    """A thousand passes over the images, within 20,000 and 240,000, in thousands."""
    return min(240, max(20, num_train // batch_size)) * 1000


def _model(info: SetInfo, model: ModelKind, *, patch: Patch) -> list[Setting]:
    is_volume, scales = info.ndim == 3, patch.scales
    if model == "punet":
        # The paper has 5 scales and 6 latents for two classes, and all scales and 85 latents for instances.
        base, scales, latent = (24, scales, 85) if info.has_instances else (32, min(scales, 5), 6)
        channels = [min(192, base * 2**i) for i in range(scales)]
        patch = Patch(patch.size, patch.strides[: scales - 1])
        return [
            Setting("kind", "punet", "The standard Probabilistic U-Net, the paper's baseline."),
            *_axes(info, patch),
            Setting("channels", channels, f"Widths of its {scales} scales, from full resolution down."),
            Setting("latent_dims", [latent], "One global latent vector: 6 for classes, 85 for instances (App. D)."),
        ]
    base = (24 if info.num_classes <= 2 else 32) - 8 * is_volume
    channels = [base * min(8, 2**i) for i in range(scales)]
    num_latents = max(1, min(4, scales - (2 if is_volume else 3)))
    grids = [_by(grid) for grid in patch.grids()]
    sizes = ", ".join(grids[:num_latents])
    is_large = is_volume or patch.positions > LARGE_CROP
    paper = "as in the paper (24 for two classes, 32 for more)"
    if is_volume:
        paper = "fewer than in the paper, for memory (16 for two classes, 24 for more)"
    why_channels = (
        f"{scales} scales, halving {grids[-1]} down to {grids[0]}. Widths start at {base} "
        f"and double to eight times that, {paper}."
    )
    fewer = "" if num_latents == 4 else ", but fewer for a small crop"
    why_latents = f"One channel at each of {sizes}, coarsest first: as in the paper{fewer}."
    why_recompute = "only if this large crop does not fit" if is_large else "not needed for this crop"
    why_blocks = "Residual blocks: 3, and 2 for crops beyond 256×256" + (" and volumes." if is_volume else ".")
    return [
        Setting("kind", "hpu", "The Hierarchical Probabilistic U-Net."),
        *_axes(info, patch),
        Setting("channels", channels, why_channels),
        Setting("latent_dims", [1] * num_latents, why_latents),
        Setting("blocks_per_scale", 2 if is_large else 3, why_blocks),
        Setting("activation_checkpointing", False, f"Save memory, without fused kernels: {why_recompute}."),
    ]


def _axes(info: SetInfo, patch: Patch) -> list[Setting]:
    """Of volumes: that they are, and what is halved."""
    if info.ndim == 2:
        return []
    said = "unknown and taken for equal" if info.spacing is None else f"{_by(info.spacing)} mm"
    why = (
        f"Per halving, finest first, along depth, height and width. Spacing is {said}: an axis is halved while its "
        "positions are about as close to each other as those of the others."
    )
    return [
        Setting("ndim", 3, "Whole volumes."),
        Setting("strides", [list(stride) for stride in patch.strides], why),
    ]


def _by(numbers: Iterable[int | float]) -> str:
    return "×".join(f"{number:g}" for number in numbers)


def _data(look: DatasetProfile, *, crop: tuple[int, ...], limit: int, options: Mapping[str, Any]) -> list[Setting]:
    found = f"All {look.samples} are {_by(look.smallest)}"
    if not look.has_one_size:
        axes = ("depths", "heights", "widths")[-look.info.ndim :]
        ranges = zip(axes, look.smallest, look.largest, strict=True)
        found = f"{look.samples.capitalize()[:-1]} sizes differ: "
        found += ", ".join(f"{axis} {low} to {high}" for axis, low, high in ranges)
    pixels = look.num_train * math.prod(look.largest) * look.info.in_channels
    num_bytes = pixels * (look.info.image_bits // 8)
    most = f"at most {min(MAX_SHORT, limit)}×{limit}"
    if look.has_volumes:
        most = f"at most {MAX_VOXELS:,} voxels; with --small, {SMALL_VOXELS:,}"
    why_crop = (
        f"{found}. This is the largest crop ({most}) inside of every {look.samples[:-1]} that "
        f"the scales can halve. Training cuts it at random places; evaluation takes whole {look.samples}."
    )
    mebibytes = max(1, num_bytes >> 20)
    why_workers = f"Processes that read ahead; not needed if the data fit on the GPU (about {mebibytes:,} MiB)."
    settings = [
        Setting("crop", list(crop), why_crop),
        Setting("num_workers", 4 if num_bytes > RESIDENT_BYTES else 0, why_workers),
    ]
    if options:
        settings.append(Setting("options", dict(options), "How the data are read, as given to `hpunet init`."))
    return settings


def _augmentation(look: DatasetProfile, *, crop: tuple[int, ...]) -> list[Setting]:
    street, colour = look.is_street_like, look.info.in_channels == 3
    no_margin = any(side < 1.1 * cut for side, cut in zip(look.smallest[-2:], crop[-2:], strict=True))
    why_shift = "for lack of margin" if no_margin else "not needed, as crops are cut at random places"
    varied = "varied for colour images" if colour else "off for grey images"
    why_turn = "wide pictures in colour are taken for scenes with a top and a bottom" if street else "no side is up"
    of_volumes = [
        Setting("mirror_front_back", True, "Exchange first and last slice half of the time."),
        Setting("tilt", 0.0, "± degrees out of the slices' plane: off, try 15 where slices are as close as pixels."),
    ]
    return [
        Setting("rotation", 10.0 if street else 180.0, f"± degrees: {why_turn}."),
        Setting("mirror_up_down", not street, f"Turn upside down half of the time: {why_turn}."),
        Setting("mirror_left_right", True, "Exchange left and right half of the time."),
        *(of_volumes if look.has_volumes else []),
        Setting("elastic", 0.04, "Elastic deformation: displacements as a share of the crop's sides."),
        Setting("shear", 0.1, "Shear, ±."),
        Setting("scale", [0.8, 1.25], "Range of magnification."),
        Setting("translate", 0.1 if no_margin else 0.0, f"Shift by up to this share of the crop: {why_shift}."),
        Setting("gamma", [0.7, 1.5] if colour else [1.0, 1.0], f"Exponent of brightness; {varied}."),
        Setting("saturation", [0.7, 1.4] if colour else [1.0, 1.0], f"How colourful; {varied}."),
        Setting("contrast", [0.7, 1.4] if colour else [1.0, 1.0], f"Around middle grey; {varied}."),
        Setting("gain", [0.8, 1.25] if colour else [1.0, 1.0], f"Of each channel; {varied}."),
    ]


def _objective(info: SetInfo, model: ModelKind) -> list[Setting]:
    if model == "punet":
        return [
            Setting("kind", "elbo", "What the standard Probabilistic U-Net is trained with."),
            Setting("beta", 1.0, "Weight of the KL."),
            Setting("top_k", "all", "All pixels count."),
        ]
    rule = (
        f"0.14 + 0.39·ln({info.num_random_ids} random ids), the line through the paper's 0.77 for 5 and 1.20 for 15"
        if info.has_instances
        else f"0.05·log2({info.num_classes} classes), for two classes the paper's 0.05"
    )
    why_kappa = (
        f"κ, target cross-entropy of a kept pixel: {rule}. If `rec` in the log stays above it and λ keeps rising, "
        "raise it; if reconstructions are poor, lower it."
    )
    return [
        Setting("kind", "geco", "Hold the reconstruction at κ and minimise the KL (Eq. 6)."),
        Setting("kappa", choose_kappa(info), why_kappa),
        Setting("top_k", 0.02, "Only this share of the pixels counts, the hardest ones, as in the paper."),
    ]


def _optimiser(look: DatasetProfile, model: ModelKind, *, patch: Patch, batch_size: int) -> list[Setting]:
    iterations = _iterations(look.num_train, batch_size)
    if model == "punet":
        rates = [1e-4, 5e-5, 1e-5]
        why_rates = "those of the authors' code but for the last, with which one run on LIDC learnt nothing more"
    else:
        rates = [3e-4, 1e-4, 2e-5]
        why_rates = "on LIDC samples were better after 8,000 iterations than with the paper's first one, 1e-4"
    graph = "The whole step as one CUDA graph"
    fast = "which makes small networks fast; ignored on a CPU"
    why_graph = f"{graph}, {fast}." if look.has_one_size else f"{graph}: only for {look.samples} of one size."
    passes = f"A thousand passes over the {look.num_train:,} training {look.samples}"
    why_batch = (
        "32 as on LIDC; fewer for larger crops, with as many pixels as the paper's batch on SNEMI3D. With too little "
        "memory, set accumulation_steps = 2 or more."
    )
    if look.has_volumes:
        why_batch = (
            "2 to 32, with as many voxels as the paper's batch on SNEMI3D has pixels. With too little memory, set "
            "accumulation_steps = 2 or more, or model.activation_checkpointing."
        )
    settings = [
        Setting("iterations", iterations, f"{passes}, at least 20,000 and at most 240,000 (the paper's on LIDC)."),
        Setting("batch_size", batch_size, why_batch),
        Setting("learning_rates", rates, f"Adam's, one after the other: {why_rates} (docs/results.md)."),
        Setting("boundaries", [0.6, 0.867], "Where the next learning rate starts, as shares of the iterations."),
        Setting("ema_decay", 0.999, "Validation and sampling use a moving average of the weights, with this decay."),
        Setting("precision", "bf16", "Of the network on a GPU (latents and loss stay fp32); ignored on a CPU."),
        Setting("cuda_graph", look.has_one_size, why_graph),
    ]
    if model == "hpu":
        clip = 1000.0 * math.ceil(patch.positions / 128**2)
        why_clip = "Upper bound of the gradient norm, 1000 per 128×128 pixels: a rare huge gradient can end a run."
        settings.append(Setting("grad_clip", clip, why_clip))
    return settings


def _logging(look: DatasetProfile, *, patch: Patch, iterations: int) -> list[Setting]:
    is_large = patch.positions > LARGE_CROP
    count = min(20 if is_large else 100, look.num_val)
    samples, why_samples = 16, "16 as in the paper"
    if is_large or math.prod(look.largest) > LARGE_CROP:
        samples, why_samples = 4, f"few, as whole {look.samples} are large"
    best, why = "ged2", "GED², the match of the distributions"
    if look.info.has_instances:
        best, why = "iou_rec", "reconstruction, since GED² compares random ids"
    return [
        Setting("validate_every", min(2000, iterations // 20), "Iterations between two validations."),
        Setting(
            "validate_images", count, f"Of the {look.num_val:,} validation {look.samples}, always the same ones."
        ),
        Setting("validate_samples", samples, f"Hypotheses for each of them; {why_samples}."),
        Setting("best", best, f"Metric that selects the best checkpoint: {why}."),
        Setting("checkpoint_every", 1000, "Iterations between two checkpoints."),
    ]


def settings_text(sections: Mapping[str, Iterable[Setting]], *, look: DatasetProfile, where: str, out: Path) -> str:
    """The TOML file: a summary of the data, the command to run, and every setting below its reason."""
    info = look.info
    what = f"{info.num_classes} classes, {info.num_graders} grader(s)"
    if info.has_instances:
        what += f", instances as {info.num_random_ids} random ids"
    # A comment ends with its line: a name that holds a line break must not become part of it.
    shown, file = (text if text.isprintable() else "WHERE" for text in (shlex.quote(where), shlex.quote(str(out))))
    document = tomlkit.document()
    for line in (
        f"For {shown} ({info.kind}): {look.num_train:,} training and {look.num_val:,} validation {look.samples},",
        f"{info.in_channels} channel(s), {what}. Written by `hpunet init`; change what you like.",
        f"  hpunet train {file} --data {shown} --out runs/{out.stem if out.stem.isprintable() else 'run'}",
    ):
        document.add(tomlkit.comment(line))
    for name, settings in sections.items():
        table = tomlkit.table()
        for setting in settings:
            for line in textwrap.wrap(setting.why, width=114):
                table.add(tomlkit.comment(line))
            value = setting.value
            if isinstance(value, Mapping):
                value = tomlkit.inline_table()
                value.update(setting.value)
            table.add(setting.key, value)
        document.add(tomlkit.nl())
        document.add(name, table)
    return tomlkit.dumps(document)
