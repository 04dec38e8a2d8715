"""`hpunet sample`: from an image file to a folder with samples, their mean and spread, and distinct hypotheses.

    <out>/<name>/sample-01.png …   label maps, the class of every pixel
    <out>/<name>/mean.png, std.png   mean and standard deviation over samples of the probability of the stochastic
                                     classes together, 16 bits, 65535 for 1
    <out>/<name>/hypotheses.json     distinct hypotheses, their shares and samples (null for ids of instances)
    <out>/<name>/sheet.png           all of it on one page
    <out>/<name>/*.nii.gz            the same as volumes where the input is one, which lie where it lies

The slices of a volume have such a folder each, `<name>/z-012`. A folder is written beside its place and renamed when
whole.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float32, Integer, Shaped
from PIL import Image

from hpunet.data.io.inputs import Input
from hpunet.data.io.volumes import encode_nifti
from hpunet.errors import ConfigError, DataError
from hpunet.models.base import SegmentationModel
from hpunet.models.hpunet import HPUNet
from hpunet.models.punet import ProbUNet
from hpunet.predict.contact_sheet import sample_sheet
from hpunet.sampling.hypotheses import Hypothesis, distinct_hypotheses
from hpunet.sampling.sample import stream
from hpunet.sampling.tiling import Tiled
from hpunet.utils.files import atomic_folder
from hpunet.utils.pictures import save_picture
from hpunet.weights.load import TrainedModel

WHOLE_UP_TO = 2**20
"""Images of up to so many pixels are computed whole, by default; 0.8 GB with the LIDC model."""
TILE = 512
"""Side of the tiles of larger ones."""


@dataclass(frozen=True)
class SamplingOptions:
    """What `hpunet sample` is asked for, the same for all images."""

    num_samples: int = 16
    scales: str = "full"
    """"full" draws all scales; "global" only the coarsest, "local" only the finest, "0,2" only those (0 is the
    coarsest). The others stay at their mean."""
    temperature: float | Sequence[float] = 1.0
    """Factor on the prior's σ, for all scales or one a scale, coarsest first."""
    seed: int = 0
    tile: str = "auto"
    """"whole", "auto", or the side of the tiles in pixels."""
    window: tuple[float, float] | None = None
    """The stored pixel values that became 0 and 1, where it was not left to what training did."""


@dataclass(frozen=True)
class Drawn:
    """Samples of one image, and the probability of the stochastic classes over them."""

    labels: Integer[np.ndarray, "s h w"]
    mean: Float32[np.ndarray, "h w"]
    std: Float32[np.ndarray, "h w"]


def draw(
    trained: TrainedModel,
    *,
    image: Float32[np.ndarray, "c h w"],
    how: SamplingOptions,
    advance: Callable[[int], None] = lambda _: None,
) -> Drawn:
    """Samples of an image of any size; `advance` hears how many more there are.

    The image is padded by its border pixels to a size that the model can halve. The noise of sample n depends on the
    seed and on the image's size alone, so the slices of a volume share it.
    """
    model = trained.model
    if model.cond_channels:
        raise ConfigError(
            f"{trained.name}: completes images from labels of a part (data.extrapolate), not from files"
        )
    h, w = image.shape[1:]
    below, right = -h % model.size_multiple, -w % model.size_multiple
    sides = (right // 2, right - right // 2, below // 2, below - below // 2)
    padded = F.pad(torch.from_numpy(image)[None], sides, mode="replicate").to(trained.device)
    inside = np.s_[..., sides[2] : sides[2] + h, sides[0] : sides[0] + w]
    labels = []
    mean = torch.zeros(h, w, device=trained.device)
    squares = torch.zeros_like(mean)  # of distances from the mean, kept up to date as the mean moves (Welford)
    try:
        for part in stream(
            with_tiles(model, size=(padded.shape[2], padded.shape[3]), tile=how.tile, sampler=trained.sampler),
            image=padded,
            num_samples=how.num_samples,
            latents=scale_choices(how.scales, num_scales=len(model.latent_dims)),
            temperature=how.temperature,
            generator=torch.Generator().manual_seed(how.seed),
        ):
            for probs, chosen in zip(part.probs[0][inside], part.labels[0][inside], strict=True):
                labels.append(chosen.cpu().numpy().astype(np.min_scalar_type(model.num_classes - 1)))
                marked = probs[list(stochastic_classes(trained))].sum(dim=0)
                before = marked - mean
                mean += before / len(labels)
                squares += before * (marked - mean)
                advance(1)
    except torch.OutOfMemoryError:
        raise DataError(f"{h}x{w} pixels do not fit the device's memory; choose smaller tiles, --tile 256") from None
    std = (squares / len(labels)).clamp(min=0).sqrt()
    return Drawn(np.stack(labels), mean.clamp(0, 1).cpu().numpy(), std.cpu().numpy())


def stochastic_classes(trained: TrainedModel) -> tuple[int, ...]:
    """The classes that hypotheses differ in; all but the background where the data did not say."""
    return trained.info.stochastic_classes or tuple(range(1, trained.info.num_classes))


def scale_choices(scales: str, *, num_scales: int) -> list[Any]:
    """ "sample" or "mean" for each scale, see `SamplingOptions.scales`."""
    named = {"full": range(num_scales), "global": (0,), "local": (num_scales - 1,)}
    try:
        sampled = set(named[scales] if scales in named else map(int, scales.split(",")))
    except ValueError:
        sampled = {-1}
    if not sampled <= set(range(num_scales)):
        raise ConfigError(
            f"scales: expected full, global, local, or numbers from 0 (coarsest) to {num_scales - 1} such as 0,1; "
            f"got {scales!r}"
        )
    choices: dict[bool, Literal["sample", "mean"]] = {True: "sample", False: "mean"}
    return [choices[i in sampled] for i in range(num_scales)]


def with_tiles(
    model: HPUNet | ProbUNet, *, size: tuple[int, int], tile: str, sampler: SegmentationModel | None = None
) -> SegmentationModel:
    """The model itself (or its sampler), or one that works tile by tile, for an image of this size."""
    if tile == "whole" or (tile == "auto" and size[0] * size[1] <= WHOLE_UP_TO):
        return sampler or model
    if tile != "auto" and not tile.isdecimal():
        raise ConfigError(f"tile: expected auto, whole or a number of pixels, got {tile!r}")
    if sampler is not None:
        raise ConfigError("tile: fused kernels compute images whole; use --tile whole or --kernels torch")
    return Tiled(model, tile=TILE if tile == "auto" else int(tile))


def result_folder(target: Path, *, replace: bool = False) -> AbstractContextManager[Path]:
    """An `atomic_folder` for the results of one image; with `replace`, earlier results of that name are replaced."""
    if target.exists():
        if not replace:
            raise DataError(f"{target}: exists already; replace it with --replace, or choose another --out")
        if not _holds_results(target):
            raise DataError(f"{target}: holds no results of hpunet, so --replace leaves it; choose another --out")
    return atomic_folder(target, replace=replace, error=DataError)


def _holds_results(folder: Path) -> bool:
    """Whether a folder is one that `hpunet sample` or `instances` wrote: of a picture, or of a volume's slices."""
    names = ("hypotheses.json", "instances.png")
    return any((place / name).is_file() for place in [folder, *folder.glob("z-*")] for name in names)


def slice_numbers(source: Input, slices: tuple[int, int] | None, *, where: str) -> list[int]:
    """The slices asked for; all without a choice."""
    first, end = slices or (0, len(source.images))
    if not 0 <= first < end <= len(source.images):
        raise ConfigError(f"{where}: slices {first}:{end} do not lie in its {len(source.images)} slices")
    return list(range(first, end))


def sample_file(
    trained: TrainedModel,
    *,
    source: Input,
    out: Path,
    how: SamplingOptions,
    slices: Sequence[int],
    same_iou: float = 0.5,
    nifti: bool = False,
    replace: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> dict[str, list[Hypothesis]]:
    """Sample one file's slices into `out`/<name>; the distinct hypotheses of each slice by its name.

    Where classes are random ids of instances there are none: no two samples are alike.
    """
    is_volume = len(source.images) > 1
    found: dict[str, list[Hypothesis]] = {}
    with result_folder(out / source.name, replace=replace) as folder:
        types = {sample_name(n): np.min_scalar_type(trained.info.num_classes - 1) for n in range(how.num_samples)}
        types |= {"mean": np.dtype(np.float32), "std": np.dtype(np.float32)}
        volumes = Volumes(folder, source, types=types) if nifti or source.header is not None else None
        for z in slices:
            name = f"{source.name}/z-{z:03d}" if is_volume else source.name
            image = source.images[z]
            drawn = draw(trained, image=image, how=how, advance=advance)
            if trained.info.has_instances:
                found[name] = []
            else:
                classes, number = stochastic_classes(trained), trained.info.num_classes
                found[name] = distinct_hypotheses(
                    drawn.labels, num_classes=number, classes=classes, same_iou=same_iou
                )
            place = folder / f"z-{z:03d}" if is_volume else folder
            about = {
                "image": name,
                "run": trained.name,
                "iteration": trained.step,
                "kernels": "torch" if trained.sampler is None else "fused",
                **asdict(how),
                "orientations": trained.model.orientations,
                "same_iou": same_iou,
            }
            _write_slice(place, image=image, drawn=drawn, hypotheses=found[name], about=about)
            if volumes is not None:
                volumes.put(z, [*drawn.labels, drawn.mean, drawn.std])
        if volumes is not None:
            volumes.write()
    return found


def _write_slice(
    folder: Path, *, image: np.ndarray, drawn: Drawn, hypotheses: Sequence[Hypothesis], about: dict[str, Any]
) -> None:
    folder.mkdir(exist_ok=True)
    for number, labels in enumerate(drawn.labels):
        save_picture(Image.fromarray(labels), folder / f"{sample_name(number)}.png")
    for name in ("mean", "std"):
        values = np.rint(getattr(drawn, name) * 65535).astype(np.uint16)
        save_picture(Image.fromarray(values), folder / f"{name}.png")
    title = f"{about['image']}: {about['num_samples']} samples of {about['run']}, iteration {about['iteration']}"
    title += f", scales {about['scales']}, seed {about['seed']}"
    page = sample_sheet(
        image=image, labels=drawn.labels, mean=drawn.mean, std=drawn.std, hypotheses=hypotheses, title=title
    )
    save_picture(page, folder / "sheet.png")
    listed = [
        {
            "share": float(hypothesis.share),
            "count": len(hypothesis.members),
            "description": hypothesis.description,
            "area_pixels": hypothesis.area,
            "num_parts": hypothesis.num_parts,
            "representative": sample_name(hypothesis.representative),
            "members": [sample_name(member) for member in hypothesis.members],
        }
        for hypothesis in hypotheses
    ]
    content = {**about, "hypotheses": listed or None}
    (folder / "hypotheses.json").write_text(json.dumps(content, indent=1) + "\n")


def sample_name(number: int) -> str:
    """What the files of a sample are called; people count from 1."""
    return f"sample-{number + 1:02d}"


class Volumes:
    """Maps of all slices on disk, until the last slice is there and they become NIfTI files.

    Slices that nobody asked for are 0 in label maps, and NaN in maps of floats.
    """

    def __init__(self, folder: Path, source: Input, *, types: Mapping[str, np.dtype[Any]]) -> None:
        self.folder, self.header = folder, source.header
        z, _, h, w = source.images.shape
        self.maps: dict[str, np.ndarray] = {}
        for name, dtype in types.items():
            self.maps[name] = np.memmap(folder / f".{name}.voxels", dtype=dtype, mode="w+", shape=(z, h, w))
            if dtype.kind == "f":
                self.maps[name][:] = np.nan

    def put(self, z: int, maps: Sequence[Shaped[np.ndarray, "h w"]]) -> None:
        """The maps of one slice, in the order of `types`."""
        for volume, values in zip(self.maps.values(), maps, strict=True):
            volume[z] = values

    def write(self) -> None:
        """All as .nii.gz."""
        for name in list(self.maps):
            content = encode_nifti(np.asarray(self.maps.pop(name)), header=self.header)
            (self.folder / f"{name}.nii.gz").write_bytes(content)
            (self.folder / f".{name}.voxels").unlink()
