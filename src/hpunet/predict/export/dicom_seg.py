"""DICOM segmentations: hypotheses or instances as segments, and the mean probability."""

import io
from typing import Any

import numpy as np

from hpunet import __version__
from hpunet.data.io.limits import need
from hpunet.errors import DataError
from hpunet.predict.export.dicom_source import DISCLAIMER, Slices, colour, plain, read_slices, silent_errors
from hpunet.predict.export.results import Results
from hpunet.utils.limits import MAX_VOLUME_BYTES

_SERIES = {"BINARY": 9001, "FRACTIONAL": 9002}
# Category and type, of codes that SNOMED CT gives away; "Tissue" where the class has no name that we know.
_TISSUE = (("85756007", "SCT", "Tissue"), ("85756007", "SCT", "Tissue"))
_ABNORMAL = ("49755003", "SCT", "Morphologically Altered Structure")
_CODES = {
    "lesion": (_ABNORMAL, ("52988006", "SCT", "Lesion")),
    "nodule": (_ABNORMAL, ("27925004", "SCT", "Nodule")),
}


def encode_dicom_seg(results: Results) -> dict[str, bytes]:
    """`segments.dcm`, a segment per region, which may overlap; `probability.dcm`, if there is a mean probability."""
    found = {}
    with silent_errors(results, what="DICOM SEG"):
        if results.regions:
            found["segments.dcm"] = _segments(results)
        if results.mean is not None:
            found["probability.dcm"] = _probability(results, results.mean)
    return found


def _segments(results: Results) -> bytes:
    planes = {number: list(results.planes(region)) for number, region in enumerate(results.regions)}
    marked = {plane.z for each in planes.values() for plane in each} or {results.start[0]}
    slices = read_slices(results, sorted(marked))
    shape = (len(slices.numbers), *results.place.shape[1:], len(results.regions))
    if np.prod(shape, dtype=np.float64) > MAX_VOLUME_BYTES:
        raise DataError(f"{len(results.regions)} segments of {len(marked)} slices are too many; choose nifti")
    pixels, place = np.zeros(shape, dtype=np.uint8), {z: n for n, z in enumerate(slices.numbers)}
    for number, each in planes.items():
        for z, (y, x), mask in each:
            h, w = mask.shape
            pixels[place[z], y : y + h, x : x + w, number] = mask
    described = [
        _described(results, number, name=region.name, words=region.description, class_name=region.class_name)
        for number, region in enumerate(results.regions, start=1)
    ]
    return _encoded(results, slices, pixels, kind="BINARY", described=described)


def _probability(results: Results, mean: np.ndarray) -> bytes:
    first, y, x = results.start
    slices = read_slices(results, range(first, first + len(mean)))
    pixels = np.zeros((len(slices.numbers), *results.place.shape[1:], 1), dtype=np.float32)
    for number, z in enumerate(slices.numbers):
        if first <= z < first + len(mean):
            pixels[number, y : y + mean.shape[1], x : x + mean.shape[2], 0] = mean[z - first]
    words = f"mean probability of {results.mean_of} over samples"
    given = {"name": "mean probability", "words": words, "class_name": results.mean_of}
    described = [_described(results, 1, **given)]
    return _encoded(results, slices, pixels, kind="FRACTIONAL", described=described)


def _described(results: Results, number: int, *, name: str, words: str, class_name: str) -> Any:
    hd, codes = need("highdicom"), need("pydicom.sr.coding")
    category, kind = (codes.Code(*code) for code in _CODES.get(class_name.lower(), _TISSUE))
    algorithm = hd.AlgorithmIdentificationSequence(
        name=plain(f"hpunet {results.model}"),
        family=codes.Code("123109", "DCM", "Artificial Intelligence"),
        version=plain(f"{__version__}, iteration {results.iteration}"),
    )
    described = hd.seg.SegmentDescription(
        segment_number=number,
        segment_label=plain(name),
        segmented_property_category=category,
        segmented_property_type=kind,
        algorithm_type="SEMIAUTOMATIC" if results.is_edited else "AUTOMATIC",
        algorithm_identification=algorithm,
        display_color=hd.color.CIELabColor.from_rgb(*colour(number)),
    )
    described.SegmentDescription = plain(words, length=1024)
    return described


def _encoded(results: Results, slices: Slices, pixels: np.ndarray, *, kind: str, described: list[Any]) -> bytes:
    hd = need("highdicom")
    title = results.title if kind == "BINARY" else "mean probability"
    segmentation = hd.seg.Segmentation(
        source_images=slices.datasets,
        pixel_array=pixels,
        segmentation_type=kind,
        segment_descriptions=described,
        series_instance_uid=hd.UID(),
        series_number=_SERIES[kind],
        sop_instance_uid=hd.UID(),
        instance_number=1,
        manufacturer="hpunet",
        manufacturer_model_name=plain(results.model) or "model",
        software_versions=__version__,
        device_serial_number=str(results.iteration),
        fractional_type="PROBABILITY" if kind == "FRACTIONAL" else None,
        content_label=title.upper().replace(" ", "_")[:16],
        content_description=plain(f"{title} by hpunet"),
        series_description=plain(f"hpunet {title}; {DISCLAIMER}"),
    )
    if slices.planes[0].position is None:
        segmentation.PatientOrientation = slices.datasets[0].get("PatientOrientation", "")
    content = io.BytesIO()
    segmentation.save_as(content, enforce_file_format=True)
    return content.getvalue()
