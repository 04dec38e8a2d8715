"""Changes to the DICOM files and XML readings of an LIDC study.

"Refused" means, for the importer, that its summary names the file among the failures.
"""

import io
import re
import struct
import warnings
from collections.abc import Callable
from pathlib import PurePosixPath
from random import Random

import pydicom
from corpus import Files
from mutate import Change, Mutation, content, copy_over, of_bytes, swap_files
from pydicom.dataset import Dataset, FileDataset
from pydicom.uid import DeflatedExplicitVRLittleEndian, JPEG2000Lossless

_NUMBERS = "NaN|nan|inf|-inf|1e999|| |1,5|0x10|--1|1e5e5|١٢"
BAD_NUMBERS = (*_NUMBERS.split("|"), "9" * 400, "1\\2\\3\\4", "\0")


def _replaced(text: bytes, pattern: str, new: str, rng: Random) -> bytes:
    """One match of the pattern, drawn at random, replaced."""
    found = rng.choice(list(re.finditer(pattern, text.decode())))
    decoded = text.decode()
    return (decoded[: found.start()] + new + decoded[found.end() :]).encode()


def bad_coordinate(data: bytes, rng: Random) -> bytes:
    axis = rng.choice("xy")
    value = rng.choice((*BAD_NUMBERS, "-5", "1.5", "4096", "4000", "99999", "1e3")).replace("\0", "&#48;x")
    return _replaced(data, rf"<{axis}Coord>\d+<", f"<{axis}Coord>{value}<", rng)


def bad_position(data: bytes, rng: Random) -> bytes:
    value = rng.choice(BAD_NUMBERS).replace("\0", "&#49;y")
    return _replaced(data, r"<imageZposition>[^<]*<", f"<imageZposition>{value}<", rng)


def bad_inclusion(data: bytes, rng: Random) -> bytes:
    value = rng.choice(("", "YES", "1", "T" * 10**5, "<x/>"))
    return _replaced(data, r"<inclusion>TRUE<", f"<inclusion>{value}<", rng)


def lost_element(data: bytes, rng: Random) -> bytes:
    names = "SeriesInstanceUid|imageZposition|inclusion|xCoord|yCoord|noduleID"
    return _replaced(data, rf"<({names})>[^<]*</({names})>", "", rng)


def doubled_element(data: bytes, rng: Random) -> bytes:
    """Of those that may be there once only."""
    names = "imageZposition|inclusion|xCoord|yCoord|noduleID"
    found = rng.choice(list(re.finditer(rf"<({names})>[^<]*</({names})>", data.decode())))
    return data[: found.end()] + found.group().encode() + data[found.end() :]


def other_element(data: bytes, rng: Random) -> bytes:
    """A renamed or moved element, of which some may be missing in earnest."""
    names = "roi|edgeMap|imageSOP_UID|readingSession|LidcReadMessage|ResponseHeader"
    return _replaced(data, rf"<(/?)({names})", "<other", rng)


def other_uid(data: bytes, rng: Random) -> bytes:
    return _replaced(data, r">1\.2\.\d[^<]*<", f">{rng.choice(('', '1.2.9', '9' * 10**5, '1.2.1.0'))}<", rng)


def document_type(data: bytes, rng: Random) -> bytes:
    """Entity bombs, external entities, or a harmless document type: none is needed, none is taken."""
    laughs = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 12))
    choices = (
        f'<!DOCTYPE x [<!ENTITY l0 "ha">{laughs}]>',
        '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/hostname">]>',
        '<!DOCTYPE x SYSTEM "http://127.0.0.1/x.dtd">',
        '<!DOCTYPE x [<!ENTITY % p SYSTEM "file:///dev/zero"> %p;]>',
        f'<!DOCTYPE x [<!ENTITY q "{"q" * 10**5}">]>',
        "<!DOCTYPE LidcReadMessage>",
    )
    body = data.split(b"?>", 1)[1].replace(b"<readingSession>", b"<readingSession>&l11;&e;&q;", rng.choice((0, 1)))
    return b'<?xml version="1.0"?>' + rng.choice(choices).encode() + body


def deep_nesting(data: bytes, rng: Random) -> bytes:
    """Deep enough to break whatever calls itself; as unknown elements they mean nothing."""
    depth = rng.choice((100, 10**4, 4 * 10**5))
    return data.replace(b"</readingSession>", b"<a>" * depth + b"</a>" * depth + b"</readingSession>", 1)


def very_many_elements(data: bytes, rng: Random) -> bytes:
    many = rng.choice((b"<a/>" * 10**5, b"<a b='c'/>" * 10**6, b"<nonNodule/>" * 10**5))
    return data.replace(b"</readingSession>", many + b"</readingSession>", 1)


def very_many_attributes(data: bytes, rng: Random) -> bytes:
    attributes = " ".join(f"a{i}='1'" for i in range(10**5)).encode()
    return data.replace(b"<readingSession>", b"<readingSession " + attributes + b">", 1)


def too_many_sessions(data: bytes, rng: Random) -> bytes:
    found = re.search(rb"<readingSession>.*</readingSession>", data)
    assert found is not None
    return data[: found.end()] + found.group() * rng.choice((2, 50)) + data[found.end() :]


def other_encoding(data: bytes, rng: Random) -> bytes:
    text = data.decode()
    return rng.choice(
        (
            text.encode("utf-16"),
            text.encode("utf-32"),
            text.replace("UTF-8", "latin-1").encode("latin-1"),
            text.replace("UTF-8", "klingon").encode(),
            text.replace("UTF-8", "utf-7").encode(),
            b"\xef\xbb\xbf" + data,
            data.replace(b"anonymous", b"\xff\xfe\x80"),
            data.replace(b"anonymous", b"&#0;"),
            data.replace(b"anonymous", b"]]>"),
        )
    )


def other_reading(files: Files, rng: Random) -> Change:
    """A second XML for the same scan, with other outlines."""
    name = _of(files, ".xml", rng)
    twin = name.replace(".xml", "_2.xml")
    return Change(files | {twin: files[name].replace(b"<xCoord>8<", b"<xCoord>7<")}, (twin, name), refused=True)


def no_session(data: bytes, rng: Random) -> bytes:
    return re.sub(rb"<readingSession>.*</readingSession>", b"", data)


def _of(files: Files, ending: str, rng: Random) -> str:
    return rng.choice([name for name in sorted(files) if name.endswith(ending)])


def lost_files(files: Files, rng: Random) -> Change:
    """A slice, all slices of a patient, or a reading: what is missing is counted."""
    name = _of(files, "", rng)
    patient = name.split("/")[0]
    slices = {n for n in files if n.endswith(".dcm") and n.split("/")[0] == patient}
    lost = {name} if rng.random() < 0.7 else slices
    return Change({n: c for n, c in files.items() if n not in lost}, (name, patient))


def doubled_files(files: Files, rng: Random) -> Change:
    name = _of(files, "", rng)
    path = PurePosixPath(name)
    return Change(files | {str(path.with_name(f"copy_{path.name}")): files[name]}, (path.name,))


def dicom(change: Callable[[Dataset, Random], None], *, refused: bool = False) -> Mutation:
    """Changes the elements of one of the slices that hold a nodule, so that its pixels are needed."""

    def mutation(files: Files, rng: Random) -> Change:
        name = rng.choice([name for name in sorted(files) if name.endswith(("001.dcm", "002.dcm"))])
        with warnings.catch_warnings(action="ignore"):
            data = pydicom.dcmread(io.BytesIO(files[name]))
            change(data, rng)
            return Change(files | {name: _written(data)}, (name,), refused)

    mutation.__name__ = change.__name__
    return mutation


def _written(data: FileDataset) -> bytes:
    buffer = io.BytesIO()
    before = pydicom.config.settings.writing_validation_mode
    pydicom.config.settings.writing_validation_mode = pydicom.config.IGNORE
    try:
        pydicom.dcmwrite(buffer, data)
    finally:
        pydicom.config.settings.writing_validation_mode = before
    return buffer.getvalue()


def _set_text(data: Dataset, name: str, text: str) -> None:
    """An element with any text at all, whatever its type."""
    tag = pydicom.datadict.tag_for_keyword(name)
    assert tag is not None
    vr = pydicom.datadict.dictionary_VR(tag)
    encoded = text.encode()
    data[name] = pydicom.dataelem.RawDataElement(pydicom.tag.Tag(tag), vr, len(encoded), encoded, 0, False, True)


def bad_decimal(data: Dataset, rng: Random) -> None:
    counts = {"PixelSpacing": 2, "ImagePositionPatient": 3, "ImageOrientationPatient": 6}
    counts |= {"RescaleSlope": 1, "RescaleIntercept": 1}
    name = rng.choice(sorted(counts))
    parts = ["1"] * counts[name]
    parts[-1] = rng.choice(BAD_NUMBERS)  # of a position only z is used
    _set_text(data, name, "\\".join(parts))


def absurd_decimal(data: Dataset, rng: Random) -> None:
    name, value = rng.choice(
        (
            ("PixelSpacing", "1e9\\1"),
            ("PixelSpacing", "0\\0"),
            ("PixelSpacing", "-1\\1"),
            ("RescaleSlope", "0"),
            ("RescaleSlope", "1e30"),
            ("RescaleIntercept", "-1e30"),
            ("ImagePositionPatient", "0\\0\\1e30"),
            ("ImageOrientationPatient", "9\\9\\9\\9\\9\\9"),
            ("ImageOrientationPatient", "1\\0\\0\\1\\0\\0"),
            ("ImageOrientationPatient", "0\\1\\0\\0\\0\\-1"),
        )
    )
    _set_text(data, name, value)


def odd_location(data: Dataset, rng: Random) -> None:
    _set_text(data, "SliceLocation", rng.choice((*BAD_NUMBERS, "77", "-7.5")))


def huge_rows(data: Dataset, rng: Random) -> None:
    setattr(data, rng.choice(("Rows", "Columns")), rng.choice((65535, 4097, 0, 1)))


def other_rows(data: Dataset, rng: Random) -> None:
    """Not what there are pixels for, and not what the other slices have."""
    name = rng.choice(("Rows", "Columns"))
    setattr(data, name, data[name].value + rng.choice((-2, -1, 1, 8, 2000)))


def other_number_of_pixels(data: FileDataset, rng: Random) -> None:
    pixels = data.PixelData
    pixels = rng.choice(
        (pixels[:-2], pixels[: rng.randrange(len(pixels)) // 2 * 2], b"", pixels + pixels, pixels + bytes(2))
    )
    is_packed = data.file_meta.TransferSyntaxUID.is_compressed
    data.PixelData = pydicom.encaps.encapsulate([pixels or bytes(2)]) if is_packed else pixels


def other_pixel_type(data: Dataset, rng: Random) -> None:
    name, values = rng.choice(
        (
            ("BitsAllocated", (0, 1, 8, 12, 32, 64, 65535)),
            ("SamplesPerPixel", (0, 2, 3, 65535)),
            ("NumberOfFrames", (2, 1000, 2**31 - 1)),
            ("PhotometricInterpretation", ("", "RGB", "PALETTE COLOR", "MONOCHROME3")),
        )
    )
    setattr(data, name, rng.choice(values))


def other_details(data: Dataset, rng: Random) -> None:
    """What may or may not matter."""
    name, values = rng.choice(
        (
            ("BitsStored", (0, 1, 8, 12, 17, 65535)),
            ("HighBit", (0, 3, 15, 65535)),
            ("PixelRepresentation", (0, 1, 2, 65535)),
            ("PlanarConfiguration", (0, 1, 7)),
            ("Modality", ("", "MR", "CT ", "C" * 1000)),
            ("SpecificCharacterSet", ("nonsense", "ISO 2022 IR 87", "\\\\")),
            ("SOPInstanceUID", ("", "1.2.0.1", "x" * 1000)),
            ("SeriesInstanceUID", ("", "1.2.0", "1.2.77")),
            ("SliceThickness", ("NaN", "-1")),
        )
    )
    setattr(data, name, rng.choice(values))


def odd_patient(data: Dataset, rng: Random) -> None:
    """Names that would lead elsewhere, or another patient's: a series has one patient."""
    data.PatientID = rng.choice(("../../x", "/etc", "", " ", "a/b", "..", "x" * 1000, "P\u00fc", "CON:", ".hidden"))


def lost_tag(data: Dataset, rng: Random) -> None:
    names = (
        "Rows Columns PixelSpacing ImagePositionPatient ImageOrientationPatient PixelData RescaleSlope "
        "RescaleIntercept BitsAllocated PatientID SeriesInstanceUID SOPInstanceUID Modality "
        "PhotometricInterpretation PixelRepresentation"
    )
    delattr(data, rng.choice(names.split()))


def packed_syntax(data: FileDataset, rng: Random) -> None:
    data.file_meta.TransferSyntaxUID = rng.choice((DeflatedExplicitVRLittleEndian, JPEG2000Lossless))
    if data.file_meta.TransferSyntaxUID == JPEG2000Lossless:
        data.PixelData = pydicom.encaps.encapsulate([data.PixelData])
        data["PixelData"].VR = "OB"


def deep_sequence(data: Dataset, rng: Random) -> None:
    inner = Dataset()
    for _ in range(rng.choice((3, 200))):
        outer = Dataset()
        outer.ReferencedImageSequence = [inner]
        inner = outer
    data.ReferencedImageSequence = [inner]


def huge_length(data: bytes, rng: Random) -> bytes:
    """An element, drawn from those with a long length field, that claims to go on for gigabytes."""
    place = data.rindex(struct.pack("<HH", 0x7FE0, 0x0010)) + 8
    return data[:place] + struct.pack("<I", rng.choice((2**31 - 2, 2**32 - 2, 2**32 - 1, 2**20))) + data[place + 4 :]


def xml_mutations() -> list[Mutation]:
    sure = [bad_coordinate, bad_position, bad_inclusion, lost_element]
    sure += [doubled_element, document_type, too_many_sessions, no_session]
    likely = (other_element, other_uid, deep_nesting, very_many_elements, very_many_attributes, other_encoding)
    refused = [content(change, ending=".xml", refused=True) for change in sure]
    others = [content(change, ending=".xml") for change in likely]
    return [*of_bytes(".xml"), *refused, *others, other_reading, swap_files, copy_over, lost_files, doubled_files]


def dicom_mutations() -> list[Mutation]:
    sure = [bad_decimal, absurd_decimal, huge_rows, other_rows]
    sure += [other_number_of_pixels, other_pixel_type, odd_patient, packed_syntax]
    likely = (odd_location, other_details, deep_sequence, lost_tag)
    changes = [*(dicom(change, refused=True) for change in sure), *(dicom(change) for change in likely)]
    changes += [content(huge_length, ending="001.dcm"), swap_files, copy_over, lost_files, doubled_files]
    return [*of_bytes(".dcm"), *changes]


def scan_mutations(*, ending: str) -> list[Mutation]:
    """Of inputs: much that an import needs may be missing, but never what says where values and pixels are."""
    likely = [bad_decimal, absurd_decimal, huge_rows, other_rows, other_number_of_pixels, other_pixel_type]
    likely += [odd_location, other_details, deep_sequence, lost_tag]
    changes = [*(dicom(change) for change in likely), content(huge_length, ending=ending)]
    return [*of_bytes(ending), *changes, dicom(packed_syntax, refused=True), swap_files, copy_over]
