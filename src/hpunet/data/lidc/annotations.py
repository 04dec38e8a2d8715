"""The outlines of the LIDC readers: the XML of one scan, and outlines rasterised to masks.

Rasterisation. A contour is the closed polygon through its vertices, pixel positions (x, y) counted from 0 at the
centre of the upper left pixel. LIDC's readers traced the first pixels *outside* the nodule (Armato et al. 2011), so a
pixel belongs to the region of a contour if and only if its centre is strictly inside the polygon by the even-odd
rule; a centre on an edge or at a vertex is not. All arithmetic is in integers.

A contour with `inclusion` FALSE removes its region by the same rule: pixels under the line stay part of the nodule
(pylidc also removes the line). The mask of a nodule in a slice is the union of its inclusions' regions minus the
union of its exclusions' regions.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from hpunet.data.io.limits import need, parse_decimal
from hpunet.errors import DataError
from hpunet.utils.files import read_file
from hpunet.utils.limits import MAX_SIDE, MAX_XML_BYTES


@dataclass(frozen=True)
class Contour:
    """One outline in one slice, which is named by z (mm) and SOP UID (may be empty); vertices are pixels (x, y)."""

    z: float
    sop_uid: str
    inclusion: bool
    vertices: Int64[np.ndarray, "n 2"]


@dataclass(frozen=True)
class Nodule:
    """One nodule, as outlined by one reader."""

    name: str
    contours: tuple[Contour, ...]


@dataclass(frozen=True)
class Reading:
    """The second (unblinded) reading of one reader; what is only counted is not used."""

    nodules: tuple[Nodule, ...]  # with at least one outline
    num_point_nodules: int  # marked by single points only (below 3 mm)
    num_point_contours: int  # single points among the outlines of a nodule
    num_non_nodules: int


@dataclass(frozen=True)
class Annotations:
    """All readings of one scan."""

    series_uid: str
    readings: tuple[Reading, ...]


def read_annotations(path: Path) -> Annotations | None:
    """The second readings in an LIDC XML file; None for XML of another kind (radiographs have their own).

    Element names are compared without namespace, which differs between releases. DTDs and entities are refused.
    """
    refused, etree = need("defusedxml.common").DefusedXmlException, need("defusedxml.ElementTree")
    content = read_file(path, max_bytes=MAX_XML_BYTES, error=DataError)
    try:
        root = etree.fromstring(content, forbid_dtd=True, forbid_entities=True, forbid_external=True)
    except refused as error:
        raise DataError(f"{path}: DTDs and entities are refused ({type(error).__name__})") from None
    except (etree.ParseError, ValueError, LookupError) as error:
        raise DataError(f"{path}: not well-formed XML ({error})") from None
    if _name(root) != "LidcReadMessage":
        return None
    headers = [element for header in _children(root, "ResponseHeader") for element in header]
    uids = {_text(element) for element in headers if _name(element).lower() == "seriesinstanceuid"}
    if len(uids) != 1 or uids == {""}:
        raise DataError(f"{path}: expected one SeriesInstanceUid in its ResponseHeader, found {len(uids - {''})}")
    sessions = _children(root, "readingSession")
    return Annotations(series_uid=uids.pop(), readings=tuple(_reading(s, path=path) for s in sessions))


def _reading(session: Any, *, path: Path) -> Reading:
    nodules: list[Nodule] = []
    num_point_nodules = num_point_contours = 0
    for element in _children(session, "unblindedReadNodule"):
        name = _child_text(element, "noduleID", path=path)
        contours = [_contour(roi, path=path, nodule=name) for roi in _children(element, "roi")]
        outlines = tuple(c for c in contours if len(np.unique(c.vertices, axis=0)) > 1)
        if outlines:
            nodules.append(Nodule(name=name, contours=outlines))
            num_point_contours += len(contours) - len(outlines)
        else:
            num_point_nodules += 1
    return Reading(tuple(nodules), num_point_nodules, num_point_contours, len(_children(session, "nonNodule")))


def _contour(roi: Any, *, path: Path, nodule: str) -> Contour:
    where = f"{path}, nodule {nodule!r}"
    inclusion = _child_text(roi, "inclusion", path=path).upper()
    if inclusion not in ("TRUE", "FALSE"):
        raise DataError(f"{where}: inclusion must be TRUE or FALSE, found {inclusion[:40]!r}")
    edges = _children(roi, "edgeMap")
    if not edges:
        raise DataError(f"{where}: a roi without any edgeMap")
    vertices = [[_coordinate(edge, axis, path=path) for axis in ("xCoord", "yCoord")] for edge in edges]
    uids = [_text(element) for element in _children(roi, "imageSOP_UID")]
    return Contour(
        z=parse_decimal(_child_text(roi, "imageZposition", path=path), limit=1e5, where=f"{where}: imageZposition"),
        sop_uid=uids[0] if uids else "",
        inclusion=inclusion == "TRUE",
        vertices=np.array(vertices, dtype=np.int64),
    )


def _coordinate(edge: Any, axis: str, *, path: Path) -> int:
    text = _child_text(edge, axis, path=path)
    if not re.fullmatch(r"\d{1,4}", text, flags=re.ASCII) or int(text) >= MAX_SIDE:
        raise DataError(f"{path}: {axis} must be a pixel position 0...{MAX_SIDE - 1}, found {text[:40]!r}")
    return int(text)


def _name(element: Any) -> str:
    """The name without namespace; comments and processing instructions have none."""
    return element.tag.rsplit("}", 1)[-1] if isinstance(element.tag, str) else ""


def _text(element: Any) -> str:
    return (element.text or "").strip()


def _children(element: Any, name: str) -> list[Any]:
    return [child for child in element if _name(child) == name]


def _child_text(element: Any, name: str, *, path: Path) -> str:
    found = _children(element, name)
    if len(found) != 1:
        raise DataError(f"{path}: expected one {name} in a {_name(element)}, found {len(found)}")
    return _text(found[0])


def rasterise(vertices: Int64[np.ndarray, "n 2"], *, shape: tuple[int, int]) -> Bool[np.ndarray, "h w"]:
    """The region of one contour by the rule above; its vertices (x, y) need not be neighbouring pixels."""
    height, width = shape
    low, high = vertices.min(axis=0), vertices.max(axis=0)
    if (low < 0).any() or high[0] >= width or high[1] >= height:
        raise DataError(f"contour: from {low.tolist()} to {high.tolist()}, outside an image of {width}x{height}")
    inside, on_line = _sides(vertices - low, width=int(high[0] - low[0]) + 1, height=int(high[1] - low[1]) + 1)
    region = np.zeros(shape, dtype=np.bool_)
    region[low[1] : high[1] + 1, low[0] : high[0] + 1] = inside & ~on_line
    return region


def _sides(
    vertices: Int64[np.ndarray, "n 2"], *, width: int, height: int
) -> tuple[Bool[np.ndarray, "h w"], Bool[np.ndarray, "h w"]]:
    """The pixels from which a ray towards larger x crosses the polygon an odd number of times, and those on it.

    An edge is looked at where it crosses a row, so that long edges in large images cost little.
    """
    ends = np.roll(vertices, -1, axis=0)
    edges = np.where(
        (vertices[:, 1] <= ends[:, 1])[:, None], np.hstack([vertices, ends]), np.hstack([ends, vertices])
    )
    toggled = np.zeros((height, width + 1), dtype=np.bool_)  # up to this pixel, exclusive
    on_line = np.zeros((height, width), dtype=np.bool_)
    level = edges[:, 1] == edges[:, 3]
    for x1, y, x2, _ in edges[level]:
        on_line[y, min(x1, x2) : max(x1, x2) + 1] = True
    rising = edges[~level]
    num_crossings = int((rising[:, 3] - rising[:, 1] + 1).sum())
    for part in np.array_split(rising, 1 + num_crossings // 2**20):
        lengths = part[:, 3] - part[:, 1] + 1
        x1, y1, x2, y2 = np.repeat(part, lengths, axis=0).T
        step = np.arange(len(x1)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        whole, rest = np.divmod((x2 - x1) * step, y2 - y1)
        x, y = x1 + whole, y1 + step
        on_line[y[rest == 0], x[rest == 0]] = True
        # The row of the upper end counts, that of the lower one does not, so a ray through a vertex crosses one of
        # its two edges where the polygon continues in the same direction.
        counts = y < y2
        np.logical_xor.at(toggled, (y[counts], (x + (rest > 0))[counts]), True)
    return np.logical_xor.accumulate(toggled[:, :0:-1], axis=1)[:, ::-1], on_line


def rasterise_nodule(contours: list[Contour], *, shape: tuple[int, int]) -> Bool[np.ndarray, "h w"]:
    """The mask of a nodule in one slice: the regions of its inclusions without those of its exclusions."""
    included, excluded = np.zeros((2, *shape), dtype=np.bool_)
    for contour in contours:
        region = included if contour.inclusion else excluded
        region |= rasterise(contour.vertices, shape=shape)
    result: np.ndarray = included & ~excluded
    return result
