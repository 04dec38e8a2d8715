"""`hpunet sample`: from an image file to a folder with samples, their mean and spread, and distinct hypotheses.

sample-01.png …     label maps, the class of every pixel
mean.png, std.png   mean and standard deviation of the summed probability of the stochastic classes; 65535 is 1
hypotheses.json     distinct hypotheses, their shares and samples (null for instance ids)
outer.png, inner.png, guarantee.json   with --guarantee: masks, areas, and what is guaranteed (`guarantee.py`)
state.json          what makes the samples again from image and model, also edited (`Predictor.replay`)
sheet.png           all of it on one page
*.nii.gz            the same as volumes, if the input is one; each slice then has its own folder, `z-012`
"""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np
from PIL import Image

from hpunet.predict.output_folder import VolumeWriter, result_folder, slice_folder
from hpunet.predict.prediction import Prediction
from hpunet.sampling.hypotheses import summarise
from hpunet.utils.pictures import save_picture


def save_slices(
    parts: Iterable[Prediction],
    target: Path,
    *,
    colour: str | None = None,
    nifti: bool = False,
    replace: bool = False,
    guarantee: float | None = None,
) -> None:
    """Write the slices of one image or volume into the folder `target`, one at a time in memory.

    With `guarantee`, also what holds with this probability.
    """
    volumes = None
    with result_folder(target, replace=replace) as folder:
        for part in parts:
            place = slice_folder(folder, part.place)
            _save_slice(part, place, colour=colour)
            if guarantee is not None:
                _save_guarantee(part, place, level=guarantee)
            if nifti or part.place.header is not None:
                maps = {sample_name(number): labels for number, labels in enumerate(part.samples)}
                volumes = volumes or VolumeWriter(folder, part.place)
                volumes.put(part.place, {**maps, "mean": part.mean, "std": part.std})
        if volumes is not None:
            volumes.write()


def _save_slice(part: Prediction, folder: Path, *, colour: str | None) -> None:
    folder.mkdir(exist_ok=True)
    for number, labels in enumerate(part.samples):
        save_picture(Image.fromarray(labels), folder / f"{sample_name(number)}.png")
    for name in ("mean", "std"):
        values = np.rint(getattr(part, name) * 65535).astype(np.uint16)
        save_picture(Image.fromarray(values), folder / f"{name}.png")
    save_picture(part.sheet(colour=colour), folder / "sheet.png")
    hypotheses = part.hypotheses
    listed = [
        {
            "share": hypothesis.share,
            "count": len(hypothesis.members),
            "description": hypothesis.description,
            "area_pixels": hypothesis.area,
            "num_parts": hypothesis.num_parts,
            "representative": sample_name(hypothesis.representative),
            "members": [sample_name(member) for member in hypothesis.members],
        }
        for hypothesis in hypotheses
    ]
    about = {
        "image": part.name,
        **asdict(part.origin),
        **asdict(part.options),
        "notes": part.notes,
    }
    grouping = {"same_iou": hypotheses[0].same_iou, "summary": summarise(hypotheses)} if hypotheses else {}
    content = {**about, **grouping, "hypotheses": listed or None}
    (folder / "hypotheses.json").write_text(json.dumps(content, indent=1) + "\n")
    (folder / "state.json").write_text(json.dumps(part.state()) + "\n")


def _save_guarantee(part: Prediction, folder: Path, *, level: float) -> None:
    found = part.guarantee(level)
    for name in ("outer", "inner"):
        save_picture(Image.fromarray(getattr(found, name).astype(np.uint8)), folder / f"{name}.png")
    calibration = found.calibration
    about = {
        "image": part.name,
        "guarantee": level,
        "miss_rate": found.miss_rate,
        "area_pixels": list(found.area),
        "statement": found.note,
        "calibrated_on": {"data": calibration.data, "split": calibration.split, "patients": calibration.num_patients},
        "notes": calibration.notes,
    }
    (folder / "guarantee.json").write_text(json.dumps(about, indent=1) + "\n")


def sample_name(number: int) -> str:
    """File name of a sample; counts from 1."""
    return f"sample-{number + 1:02d}"
