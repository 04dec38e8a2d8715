"""`hpunet sample`: from an image file to a folder with samples, their mean and spread, and distinct hypotheses.

sample-01.png …     label maps, the class of every pixel
mean.png, std.png   mean and standard deviation of the summed probability of the stochastic classes; 65535 is 1
hypotheses.json     distinct hypotheses, their shares and samples (null for instance ids)
sheet.png           all of it on one page
*.nii.gz            the same as volumes, if the input is one; each slice then has its own folder, `z-012`
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hpunet.data.io.inputs import Input
from hpunet.predict.contact_sheet import sample_sheet
from hpunet.predict.draw import ImageSamples, SamplingOptions, sample_image, stochastic_classes
from hpunet.predict.output_folder import VolumeWriter, result_folder, slice_folder
from hpunet.sampling.hypotheses import Hypothesis, distinct_hypotheses, summarise
from hpunet.utils.pictures import save_picture
from hpunet.weights.load import TrainedModel


def sample_file(
    trained: TrainedModel,
    *,
    source: Input,
    out: Path,
    options: SamplingOptions,
    slices: Sequence[int],
    same_iou: float | None = None,
    colour: str | None = None,
    nifti: bool = False,
    replace: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> dict[str, list[Hypothesis]]:
    """Sample one file's slices into `out`/<name>; returns distinct hypotheses by slice (none for instance ids)."""
    found: dict[str, list[Hypothesis]] = {}
    with result_folder(out / source.name, replace=replace) as folder:
        types = {sample_name(n): np.min_scalar_type(trained.info.num_classes - 1) for n in range(options.num_samples)}
        types |= {"mean": np.dtype(np.float32), "std": np.dtype(np.float32)}
        volumes = VolumeWriter(folder, source, types=types) if nifti or source.header is not None else None
        for z in slices:
            name, place = slice_folder(folder, source, z)
            image = source.images[z]
            drawn = sample_image(trained, image=image, options=options, advance=advance)
            if trained.info.has_instances:
                found[name] = []
            else:
                classes, number = stochastic_classes(trained), trained.info.num_classes
                how: dict[str, Any] = {"num_classes": number, "classes": classes, "same_iou": same_iou}
                found[name] = distinct_hypotheses(drawn.labels, **how)
            about = {
                "image": name,
                "run": trained.name,
                "iteration": trained.step,
                "kernels": "torch" if trained.sampler is None else "fused",
                **asdict(options),
                "orientations": trained.model.orientations,
            }
            _write_slice(place, image=image, drawn=drawn, hypotheses=found[name], about=about, colour=colour)
            if volumes is not None:
                volumes.put(z, [*drawn.labels, drawn.mean, drawn.std])
        if volumes is not None:
            volumes.write()
    return found


def _write_slice(
    folder: Path,
    *,
    image: np.ndarray,
    drawn: ImageSamples,
    hypotheses: Sequence[Hypothesis],
    about: dict[str, Any],
    colour: str | None,
) -> None:
    folder.mkdir(exist_ok=True)
    for number, labels in enumerate(drawn.labels):
        save_picture(Image.fromarray(labels), folder / f"{sample_name(number)}.png")
    for name in ("mean", "std"):
        values = np.rint(getattr(drawn, name) * 65535).astype(np.uint16)
        save_picture(Image.fromarray(values), folder / f"{name}.png")
    title = f"{about['image']}: {about['num_samples']} samples of {about['run']}, iteration {about['iteration']}"
    title += f", scales {about['scales']}, seed {about['seed']}"
    page = sample_sheet(image=image, **vars(drawn), hypotheses=hypotheses, title=title, colour=colour)
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
    grouping = {"same_iou": hypotheses[0].same_iou, "summary": summarise(hypotheses)} if hypotheses else {}
    content = {**about, **grouping, "hypotheses": listed or None}
    (folder / "hypotheses.json").write_text(json.dumps(content, indent=1) + "\n")


def sample_name(number: int) -> str:
    """File name of a sample; counts from 1."""
    return f"sample-{number + 1:02d}"
