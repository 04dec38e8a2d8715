"""DICOM RT structure sets: the outlines of regions in patient coordinates."""

import io
from datetime import datetime
from typing import Any

import numpy as np

from hpunet import __version__
from hpunet.data.io.dicom import Plane, required
from hpunet.data.io.limits import need
from hpunet.errors import DataError
from hpunet.predict.export.dicom_source import DISCLAIMER, Slices, colour, plain, read_slices, silent_errors
from hpunet.predict.export.outlines import keyhole, outlines
from hpunet.predict.export.results import Region, Results

_STORAGE = "1.2.840.10008.5.1.4.1.1.481.3"
_DETACHED_STUDY = "1.2.840.10008.3.1.2.3.1"
_COPIED = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyInstanceUID", "StudyDate", "StudyTime"),
    *("ReferringPhysicianName", "StudyID", "AccessionNumber", "SpecificCharacterSet", "StudyDescription"),
    *("PatientAge", "PatientSize", "PatientWeight", "PositionReferenceIndicator"),
)


def encode_rtstruct(results: Results) -> dict[str, bytes]:
    """`contours.dcm`: an ROI per region. Contours run along the edges of pixels; holes are reached by a keyhole."""
    with silent_errors(results, what="RTSTRUCT"):
        planes = [list(results.planes(region)) for region in results.regions]
        numbers = {plane.z for each in planes for plane in each} or {results.start[0]}
        slices = read_slices(results, sorted(numbers))
        data = _header(results, slices)
        frame_of_reference = required(slices.datasets[0], "FrameOfReferenceUID", path=slices.frames[0].path)
        where = {z: number for number, z in enumerate(slices.numbers)}
        data.StructureSetROISequence, data.ROIContourSequence = [], []
        data.RTROIObservationsSequence = []
        for number, (region, each) in enumerate(zip(results.regions, planes, strict=True), start=1):
            data.StructureSetROISequence.append(_roi(region, number, results, frame_of_reference))
            contours = [
                _item(
                    ContourImageSequence=[_reference(slices, where[z])],
                    ContourGeometricType="CLOSED_PLANAR",
                    NumberOfContourPoints=len(ring),
                    ContourData=_texts(_points(ring, slices.planes[where[z]], slices)),
                )
                for z, offset, mask in each
                for ring in map(keyhole, outlines(mask, offset=offset))
            ]
            shown: dict[str, Any] = {"ReferencedROINumber": number}
            shown["ROIDisplayColor"] = list(colour(number))
            data.ROIContourSequence.append(_item(**shown, **({"ContourSequence": contours} if contours else {})))
            observed = {"ObservationNumber": number, "ReferencedROINumber": number}
            data.RTROIObservationsSequence.append(_item(**observed, RTROIInterpretedType="", ROIInterpreter=""))
        content = io.BytesIO()
        data.save_as(content, enforce_file_format=True)
    return {"contours.dcm": content.getvalue()}


def _header(results: Results, slices: Slices) -> Any:
    pydicom = need("pydicom")
    source, now = slices.datasets[0], datetime.now()
    meta = pydicom.dataset.FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.TransferSyntaxUID = _STORAGE, pydicom.uid.ExplicitVRLittleEndian
    meta.MediaStorageSOPInstanceUID = pydicom.uid.generate_uid()
    data = pydicom.dataset.FileDataset("", {}, file_meta=meta, preamble=bytes(128))
    for name in _COPIED:
        if name in source:
            data[name] = source[name]
    data.SOPClassUID, data.SOPInstanceUID = _STORAGE, meta.MediaStorageSOPInstanceUID
    data.Modality, data.SeriesInstanceUID, data.SeriesNumber = "RTSTRUCT", pydicom.uid.generate_uid(), 9003
    data.SeriesDescription = plain(f"hpunet {results.title}; {DISCLAIMER}")
    data.OperatorsName = ""
    data.Manufacturer, data.ManufacturerModelName = "hpunet", plain(results.model)
    data.SoftwareVersions, data.InstanceNumber = __version__, 1
    data.StructureSetLabel, data.StructureSetName = "hpunet", plain(results.title)
    data.StructureSetDescription = plain(f"{results.title} by hpunet, {DISCLAIMER}", length=1024)
    data.StructureSetDate = data.InstanceCreationDate = data.SeriesDate = now.strftime("%Y%m%d")
    data.StructureSetTime = data.InstanceCreationTime = data.SeriesTime = now.strftime("%H%M%S")
    data.ApprovalStatus = "UNAPPROVED"
    data.FrameOfReferenceUID = source.get("FrameOfReferenceUID", "")
    data.PositionReferenceIndicator = source.get("PositionReferenceIndicator", "")
    images = [_reference(slices, number) for number in range(len(slices.numbers))]
    series = _item(SeriesInstanceUID=source.SeriesInstanceUID, ContourImageSequence=images)
    study = {"ReferencedSOPClassUID": _DETACHED_STUDY, "ReferencedSOPInstanceUID": source.StudyInstanceUID}
    frames = {"FrameOfReferenceUID": data.FrameOfReferenceUID}
    data.ReferencedFrameOfReferenceSequence = [
        _item(**frames, RTReferencedStudySequence=[_item(**study, RTReferencedSeriesSequence=[series])])
    ]
    return data


def _roi(region: Region, number: int, results: Results, frame_of_reference: str) -> Any:
    return _item(
        ROINumber=number,
        ReferencedFrameOfReferenceUID=frame_of_reference,
        ROIName=plain(region.name),
        ROIDescription=plain(region.description, length=1024),
        ROIGenerationAlgorithm="SEMIAUTOMATIC" if results.is_edited else "AUTOMATIC",
        ROIGenerationDescription=plain(f"hpunet {__version__}, {results.model}, iteration {results.iteration}"),
    )


def _reference(slices: Slices, number: int) -> Any:
    """To the image of a slice."""
    dataset = slices.dataset(number)
    found = _item(ReferencedSOPClassUID=dataset.SOPClassUID, ReferencedSOPInstanceUID=dataset.SOPInstanceUID)
    if "NumberOfFrames" in dataset:
        found.ReferencedFrameNumber = slices.frames[number].number + 1
    return found


def _points(ring: np.ndarray, plane: Plane, slices: Slices) -> np.ndarray:
    """Corners of pixels in mm; the position of a plane is that of the centre of its first pixel."""
    if plane.position is None or plane.orientation is None or plane.spacing is None:
        raise DataError(f"{slices.frames[0].path}: has no position in the patient, which contours need")
    across, down = np.array(plane.orientation[:3]), np.array(plane.orientation[3:])
    x, y = (ring - 0.5).T
    moved = np.outer(x * plane.spacing[1], across) + np.outer(y * plane.spacing[0], down)
    return np.asarray(np.array(plane.position) + moved)


def _texts(points: np.ndarray) -> list[str]:
    """Decimal strings of at most 16 characters, to a millionth of a millimetre."""
    return [f"{value:.6f}" for value in points.ravel().tolist()]


def _item(**values: Any) -> Any:
    item = need("pydicom").Dataset()
    for name, value in values.items():
        setattr(item, name, value)
    return item
