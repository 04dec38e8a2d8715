"""`hpunet sample`: what is written of every slice: samples, their mean and spread, and distinct hypotheses.

sample-01.png …     label maps, the class of every pixel
mean.png, std.png   mean and standard deviation of the summed probability of the stochastic classes; 65535 is 1
hypotheses.json     distinct hypotheses, their shares and samples (null for instance ids)
state.json          what makes the samples again from image and model, also edited (`Predictor.replay`)
sheet.png           all of it on one page

Each slice of a volume has its own folder, `z-012`. Other formats are of the whole: `export/registry.py`.
"""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from PIL import Image

from hpunet.predict.export.collector import sample_name
from hpunet.predict.prediction import Prediction
from hpunet.sampling.hypotheses import summarise
from hpunet.utils.pictures import save_picture


def save_pictures(part: Prediction, folder: Path, *, colour: str | None) -> None:
    """Write the maps and the sheet of a slice."""
    for number, labels in enumerate(part.samples):
        save_picture(Image.fromarray(labels), folder / f"{sample_name(number)}.png")
    for name in ("mean", "std"):
        values = np.rint(getattr(part, name) * 65535).astype(np.uint16)
        save_picture(Image.fromarray(values), folder / f"{name}.png")
    save_picture(part.sheet(colour=colour), folder / "sheet.png")


def save_record(part: Prediction, folder: Path) -> None:
    """Write the hypotheses and the state of a slice, which are there in every format."""
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
