"""LIDC outlines: the XML of the readers, and the exact masks of its contours."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lidc_study import Roi, Session, square, write_xml

from hpunet.data.lidc.annotations import Contour, rasterise, rasterise_nodule, read_annotations
from hpunet.errors import DataError

PYLIDC = Path(__file__).parent / "fixtures" / "pylidc_areas.json"


def edges_of(vertices: list[tuple[int, int]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    return list(zip(vertices, vertices[1:] + vertices[:1], strict=True))


def on_edge(x: int, y: int, vertices: list[tuple[int, int]]) -> bool:
    """Whether a pixel's centre lies on the line, found from distances along it."""
    for (ax, ay), (bx, by) in edges_of(vertices):
        along, across = (bx - ax) * (x - ax) + (by - ay) * (y - ay), (bx - ax) * (y - ay) - (by - ay) * (x - ax)
        if across == 0 and 0 <= along <= (bx - ax) ** 2 + (by - ay) ** 2 and (ax, ay) != (bx, by):
            return True
    return (x, y) in vertices


def slow_inside(x: int, y: int, vertices: list[tuple[int, int]]) -> bool:
    """Even-odd with a ray that goes up between two columns of pixels, so that it never meets a vertex.

    The ray starts at (x + 1/n, y) with n so large that no edge passes between that point and the pixel's centre
    unless it passes through the centre; everything is multiplied by n to stay with integers.
    """
    if on_edge(x, y, vertices):
        return False
    n = 10**6
    crossings = 0
    for (ax, ay), (bx, by) in edges_of(vertices):
        if ax == bx or not min(ax, bx) * n < x * n + 1 < max(ax, bx) * n:
            continue
        # Height of the edge at the ray, times n·(bx − ax), against y times the same.
        height = ay * n * (bx - ax) + (x * n + 1 - ax * n) * (by - ay)
        crossings += (height - y * n * (bx - ax)) * (1 if bx > ax else -1) > 0
    return crossings % 2 == 1


def slow_rasterise(vertices: list[tuple[int, int]], shape: tuple[int, int]) -> np.ndarray:
    return np.array([[slow_inside(x, y, vertices) for x in range(shape[1])] for y in range(shape[0])])


def draw(vertices: list[tuple[int, int]], shape: tuple[int, int] = (12, 14)) -> np.ndarray:
    return rasterise(np.array(vertices, dtype=np.int64), shape=shape)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 13), st.integers(0, 11)), min_size=1, max_size=9))
def test_rasterise_equals_a_slow_test_of_every_pixel(vertices):
    assert np.array_equal(draw(vertices), slow_rasterise(vertices, (12, 14)))


def test_rasterise_leaves_the_contour_outside():
    region = draw(square(3, 4, 5))
    assert region.sum() == 25
    assert region[4:9, 3:8].all()
    # Long edges: the pixels under the line between two vertices are on the contour too.
    assert np.array_equal(draw([(2, 3), (8, 3), (8, 9), (2, 9)]), region)


@pytest.mark.parametrize("order", [1, -1])
def test_rasterise_does_not_mind_direction_or_closing(order):
    vertices = [(1, 1), (9, 2), (6, 6), (10, 10), (2, 8)][::order]
    assert np.array_equal(draw(vertices), draw([*vertices, vertices[0]]))
    assert np.array_equal(draw(vertices), slow_rasterise(vertices, (12, 14)))


def test_rasterise_of_lines_and_points_is_empty():
    for vertices in ([(3, 3)], [(3, 3), (8, 3)], [(2, 2), (5, 5), (9, 9)]):
        assert not draw(vertices).any()


def test_rasterise_refuses_vertices_outside_the_image():
    for vertices in ([(0, 0), (14, 3), (2, 5)], [(0, 0), (3, 12), (2, 5)], [(-1, 0), (3, 3), (2, 5)]):
        with pytest.raises(DataError, match="outside an image of 14x12"):
            draw(vertices)


def test_rasterise_nodule_cuts_exclusions_out_but_keeps_their_line():
    def contour(vertices: list[tuple[int, int]], inclusion: bool = True) -> Contour:
        return Contour(z=0.0, sop_uid="", inclusion=inclusion, vertices=np.array(vertices))

    diamond = [(4, 5), (5, 4), (6, 5), (5, 6)]
    hole_first = [contour(diamond, inclusion=False), contour(square(2, 2, 7)), contour(square(11, 2, 2))]
    nodule = rasterise_nodule(hole_first, shape=(12, 14))
    expected = np.zeros((12, 14), dtype=bool)
    expected[2:9, 2:9] = expected[2:4, 11:13] = True
    expected[5, 5] = False
    assert np.array_equal(nodule, expected)


def test_rasterise_has_the_areas_of_pylidc():
    """Equal for every slice, under two rules that make pylidc's areas differ from LIDC's definition.

    It removes the line of an exclusion, which here stays; and on an edge between vertices that are no neighbours
    it leaves the pixels to matplotlib's floating-point test, which may count them. Where all vertices are
    neighbours, as in nearly all of LIDC, the second rule has nothing to act on and the areas are equal.
    """
    slices = json.loads(PYLIDC.read_text())["slices"]
    assert len(slices) > 300
    num_exact = 0
    for entry in slices:
        contours = [(inclusion, np.array(flat).reshape(-1, 2)) for inclusion, flat in entry["contours"]]
        # Only the part of the image around the nodule, to be quick.
        corner = np.concatenate([vertices for _, vertices in contours]).min(axis=0)
        contours = [(inclusion, vertices - corner) for inclusion, vertices in contours]
        width, height = np.concatenate([vertices for _, vertices in contours]).max(axis=0) + 1
        shape = (int(height), int(width))
        ours = [Contour(z=0.0, sop_uid="", inclusion=inclusion, vertices=v) for inclusion, v in contours]
        mask = rasterise_nodule(ours, shape=shape)
        undecided = np.zeros(shape, dtype=bool)
        for inclusion, vertices in contours:
            if not inclusion:
                mask[vertices[:, 1], vertices[:, 0]] = False
            for start, end in zip(vertices, np.roll(vertices, -1, axis=0), strict=True):
                steps = np.gcd(*np.abs(end - start))
                for step in range(1, steps):
                    x, y = start + (end - start) // steps * step
                    undecided[y, x] = True
        if undecided.any():
            assert abs(entry["area"] - int(mask.sum())) <= undecided.sum(), entry["contour"]
        else:
            num_exact += 1
            assert int(mask.sum()) == entry["area"], entry["contour"]
    assert num_exact > 300


def test_read_annotations_takes_outlines_of_the_second_reading(tmp_path):
    outline, point = square(3, 3, 2), [(4, 4)]
    hole = Roi(-1.5, [(3, 3), (4, 4), (3, 4)], inclusion="FALSE", sop_uid="1.2.3")
    sessions = [
        Session(nodules=[[Roi(-1.5, outline), hole, Roi(0, point)], [Roi(2, point)]], num_non_nodules=3),
        Session(blinded=[[Roi(2, outline)]]),
    ]
    read = read_annotations(write_xml(tmp_path / "a.xml", "1.2", sessions))
    assert read.series_uid == "1.2"
    first, second = read.readings
    assert (first.num_point_nodules, first.num_point_contours, first.num_non_nodules) == (1, 1, 3)
    assert second.nodules == ()
    assert second.num_point_nodules == 0
    (nodule,) = first.nodules
    assert nodule.name == "Nodule 0"
    assert [contour.inclusion for contour in nodule.contours] == [True, False]
    assert [contour.z for contour in nodule.contours] == [-1.5, -1.5]
    assert [contour.sop_uid for contour in nodule.contours] == ["", "1.2.3"]
    assert nodule.contours[0].vertices.tolist() == [list(vertex) for vertex in outline]


def test_read_annotations_leaves_other_xml_alone(tmp_path):
    path = tmp_path / "a.xml"
    path.write_text('<IdriReadMessage xmlns="http://www.nih.gov/idri"/>')
    assert read_annotations(path) is None


GOOD = "<edgeMap><xCoord>1</xCoord><yCoord>2</yCoord></edgeMap>"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<LidcReadMessage", "<!DOCTYPE a [<!ENTITY b 'c'>]><LidcReadMessage", "DTDs and entities are refused"),
        ("<LidcReadMessage", '<!DOCTYPE a SYSTEM "b.dtd"><LidcReadMessage', "DTDs and entities are refused"),
        ("</LidcReadMessage>", "", "not well-formed"),
        ("<SeriesInstanceUid>1.2</SeriesInstanceUid>", "", "one SeriesInstanceUid"),
        ("<inclusion>TRUE", "<inclusion>MAYBE", "TRUE or FALSE, found 'MAYBE'"),
        ("<imageZposition>1.5", "<imageZposition>nan", "imageZposition.*found 'nan'"),
        ("<imageZposition>1.5", "<imageZposition>inf", "imageZposition.*found 'inf'"),
        ("<imageZposition>1.5", "<imageZposition>1e99", "imageZposition.*found '1e99'"),
        ("<imageZposition>1.5</imageZposition>", "", "one imageZposition in a roi"),
        ("<xCoord>1<", "<xCoord>1.5<", "xCoord must be a pixel position"),
        ("<xCoord>1<", "<xCoord>-1<", "xCoord must be a pixel position"),
        ("<xCoord>1<", "<xCoord>9999<", "xCoord must be a pixel position"),
        (GOOD, "", "without any edgeMap"),
    ],
)
def test_read_annotations_names_file_and_fault(tmp_path, old, new, message):
    path = write_xml(tmp_path / "scan.xml", "1.2", [Session(nodules=[[Roi(1.5, [(1, 2)])]])])
    assert read_annotations(path) is not None
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DataError, match=rf"scan\.xml.*{message}"):
        read_annotations(path)


def test_read_annotations_is_bounded(tmp_path, monkeypatch):
    path = write_xml(tmp_path / "scan.xml", "1.2", [])
    monkeypatch.setattr("hpunet.data.lidc.annotations.MAX_XML_BYTES", 100)
    with pytest.raises(DataError, match=r"scan\.xml: \d+ bytes.*100"):
        read_annotations(path)
