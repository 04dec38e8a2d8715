"""Measurements of a prediction, as tables for spreadsheets and programs.

measurements.csv    one line per sample and class, and the distinct hypothesis that the sample belongs to
measurements.json   the same, with median and 5–95 % over samples, and the sizes of each hypothesis' map
"""

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hpunet.config.settings import MAX_SAMPLES
from hpunet.data.types import SetInfo
from hpunet.errors import ConfigError, DataError
from hpunet.metrics import Measurements, Sizes, measure
from hpunet.metrics.measurements import UNITS
from hpunet.utils.files import parse_json, read_file
from hpunet.utils.text import as_utf8, csv_text

if TYPE_CHECKING:
    from hpunet.predict.prediction import Prediction

CSV_FILE, JSON_FILE = "measurements.csv", "measurements.json"
MAX_BYTES = 2**25
_LARGEST_MM = 1e6  # other distances of pixels are damaged headers
_NO_VOLUME = "not measured: slices are sampled one by one, so samples of neighbouring slices do not belong together"


def measure_prediction(part: "Prediction") -> Measurements:
    """See `Prediction.measurements`."""
    if part.is_stack:
        raise ConfigError(f"{part.name}: volume {_NO_VOLUME}; measure one of its slices, .slices[z].measurements")
    require_classes(part.info, what="measurements")
    return measure(part.samples, classes=_named_classes(part.info), spacing=known_spacing(part))


def known_spacing(part: "Prediction") -> tuple[float, ...] | None:
    """Distance of neighbouring pixels in mm; None if its file does not say, or its header is damaged."""
    spacing = part.spacing
    if spacing is None or not all(1 / _LARGEST_MM < side < _LARGEST_MM for side in spacing):
        return None
    return spacing


def require_classes(info: SetInfo, *, what: str) -> None:
    """Refuse models of instances, whose random ids differ from sample to sample."""
    if info.has_instances:
        raise ConfigError(f"{what}: only for classes, since ids of instances are random; see hpunet instances")


def _named_classes(info: SetInfo) -> dict[str, int]:
    names = info.fixed_classes
    return {names[c] if names.count(names[c]) == 1 else f"{names[c]} {c}": c for c in info.foreground}


def measurement_files(part: "Prediction") -> dict[str, Any]:
    """The table as text and the JSON as plain data, by the name of the file."""
    found, hypotheses = part.measurements, part.hypotheses
    group = {member: number for number, each in enumerate(hypotheses, start=1) for member in each.members}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    quantities = list(next(iter(found.classes.values())))
    writer.writerow(["image", "sample", "hypothesis", "class", *quantities, "unit"])
    unit = ("pixel" if part.axes == "yx" else "voxel") if found.spacing is None else "mm"
    for sample in range(len(part.samples)):
        for name, sizes in found.classes.items():
            numbers = [f"{sizes[quantity].values[sample]:.10g}" for quantity in quantities]
            writer.writerow([csv_text(part.name), sample + 1, group[sample], csv_text(name), *numbers, unit])
    content: dict[str, Any] = {
        "format": "hpunet-measurements",
        "version": 1,
        "image": part.name,
        "spacing_mm": None if found.spacing is None else list(found.spacing),
        "volume": _NO_VOLUME if part.place.shape[0] > 1 and part.axes == "yx" else None,
        "classes": {name: {q: _record(each) for q, each in sizes.items()} for name, sizes in found.classes.items()},
        "hypotheses": [
            {
                "share": each.share,
                "sample": each.representative + 1,
                "classes": {
                    name: {q: float(of.values[each.representative]) for q, of in sizes.items()}
                    for name, sizes in found.classes.items()
                },
            }
            for each in hypotheses
        ],
    }
    return {CSV_FILE: as_utf8(text.getvalue()), JSON_FILE: content}


def _record(sizes: Sizes) -> dict[str, Any]:
    low, high = sizes.interval()
    numbers = {"median": sizes.median, "low": low, "high": high}
    return {"unit": sizes.unit, **numbers, "samples": sizes.values.tolist()}


_Size = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]
_Units = Literal["", "mm", "mm²", "ml", "pixels", "voxels"]


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _SizesRecord(_Lenient):
    unit: _Units
    samples: Annotated[list[_Size], Field(min_length=1, max_length=MAX_SAMPLES)]


class _Record(_Lenient):
    format: Literal["hpunet-measurements"]
    version: Literal[1]
    image: str
    spacing_mm: Annotated[list[_Size], Field(min_length=2, max_length=3)] | None
    classes: Annotated[dict[str, dict[str, _SizesRecord]], Field(min_length=1)]


def read_measurements(path: str | Path) -> Measurements:
    """Measurements from the folder of an image's results, or from its `measurements.json`."""
    file = Path(path)
    if file.is_dir():
        if not (file / JSON_FILE).is_file() and (slices := sorted(file.glob(f"*/{JSON_FILE}"))):
            raise ConfigError(f"{path}: holds several images or slices; give the folder of one: {slices[0].parent}")
        file = file / JSON_FILE
    content = parse_json(read_file(file, max_bytes=MAX_BYTES, error=DataError), name=str(file))
    try:
        record = _Record.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])[:80]
        raise DataError(f"{file}: not measurements of hpunet ({where}: {first['msg']})") from None
    counts = {len(each.samples) for sizes in record.classes.values() for each in sizes.values()}
    names = {name for sizes in record.classes.values() for name in sizes}
    if len(counts) != 1 or not names <= UNITS.keys():
        raise DataError(f"{file}: not measurements of hpunet (numbers of samples differ, or unknown quantities)")
    classes = {
        name: {q: Sizes(np.array(each.samples, dtype=np.float64), each.unit) for q, each in sizes.items()}
        for name, sizes in record.classes.items()
    }
    return Measurements(None if record.spacing_mm is None else tuple(record.spacing_mm), classes)
