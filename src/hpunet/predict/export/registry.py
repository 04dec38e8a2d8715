"""The formats of results, by name: one registry for `hpunet sample`, `hpunet instances`, Python and the viewer."""

import importlib.util
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hpunet.errors import ConfigError, DataError
from hpunet.predict.export.dicom_seg import encode_dicom_seg
from hpunet.predict.export.geojson import encode_geojson
from hpunet.predict.export.imagej import encode_imagej
from hpunet.predict.export.results import Results
from hpunet.predict.export.rtstruct import encode_rtstruct
from hpunet.predict.place import Place

PNG, NIFTI = "png", "nifti"


class Format(NamedTuple):
    """How results become files."""

    encode: Callable[[Results], dict[str, bytes]] | None = None
    """Their contents by name; None for maps, which are written slice by slice (`samples.py`, `writer.py`)."""
    module: str = ""
    """What it needs to be installed."""
    extra: str = "export"
    needs_dicom: bool = False
    """Whether it refers to the DICOM files of the image."""


FORMATS = {
    PNG: Format(),
    NIFTI: Format(None, "nibabel", "data"),
    "dicom-seg": Format(encode_dicom_seg, "highdicom", needs_dicom=True),
    "rtstruct": Format(encode_rtstruct, "pydicom", needs_dicom=True),
    "geojson": Format(encode_geojson),
    "imagej": Format(encode_imagej, "roifile"),
}


def parse_formats(text: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Names of formats, as a sequence or separated by commas; None for the usual ones."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")] if isinstance(text, str) else list(text)
    if unknown := [name for name in names if name not in FORMATS] or ([] if names else [""]):
        raise ConfigError(f"format: expected some of {','.join(FORMATS)}, got {unknown[0]!r}")
    return tuple(dict.fromkeys(names))


def usual_formats(place: Place) -> tuple[str, ...]:
    """PNG; of volumes NIfTI, too."""
    return (PNG, NIFTI) if place.header is not None or place.geometry.axes == "zyx" else (PNG,)


def check_formats(formats: Sequence[str], *, place: Place, has_regions: bool, where: str) -> None:
    """Refuse formats that this image cannot have, before any work; `where` names it."""
    for name in formats:
        kind = FORMATS[name]
        if kind.module and importlib.util.find_spec(kind.module) is None:
            words = f"pip install {kind.module}, or install hpunet with its extra {kind.extra!r}"
            raise ConfigError(f"format {name}: needs {kind.module}: {words}")
        if kind.needs_dicom and not place.frames:
            words = "needs a DICOM file or series, at its own pixels (without --spacing), to refer to"
            raise DataError(f"{where}: format {name} {words}; choose another format")
        if kind.encode is not None and not has_regions:
            raise ConfigError(f"format {name}: needs hypotheses, and this model draws instance ids; hpunet instances")


def fitting_formats(place: Place) -> list[str]:
    """The formats with an encoder that this image can have, and whose packages are installed."""
    found = []
    for name, kind in FORMATS.items():
        is_there = not kind.module or importlib.util.find_spec(kind.module) is not None
        if kind.encode is not None and is_there and (place.frames or not kind.needs_dicom):
            found.append(name)
    return found
