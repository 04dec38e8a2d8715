"""The viewer's exports: the mask as a person left it, in the formats of its case."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from dicom_series import PLANTED, ROOT, write_series
from untrained import make_predictor
from viewing import open_client, write_images

from hpunet.data.synthetic.source import INFO
from hpunet.viewer.export import FORMATS

PAINT = {"kind": "paint", "slice": 1, "value": 1, "runs": [[3, 2], [25, 1]]}


def test_dicom_of_a_series_refers_to_the_slice_that_was_painted(tmp_path: Path) -> None:
    series = write_series(tmp_path / "in", "tilted")
    info = replace(INFO["lesions"], image_bits=32)
    answers: list[bytes] = []
    with open_client(tmp_path, [series], load=lambda: make_predictor(info)) as (client, _):

        def export(kind: str) -> Any:
            answer = client.post("/api/cases/0/export", {"format": kind})
            answers.append(json.dumps(dict(answer.headers)).encode())
            return answer

        assert client.get("/api/cases/0").json()["formats"][-4:] == ["dicom-seg", "rtstruct", "geojson", "imagej"]
        nothing = export("dicom-seg")
        assert (nothing.status, "nothing is marked" in nothing.json()["detail"]) == (400, True)
        client.post("/api/cases/0/events", {"version": 0, "events": [PAINT]})
        data = pydicom.dcmread(io.BytesIO(export("dicom-seg").content))
        assert data.pixel_array.ravel().nonzero()[0].tolist() == [3, 4, 25]
        (groups,) = data.PerFrameFunctionalGroupsSequence
        (image,) = groups.DerivationImageSequence[0].SourceImageSequence
        assert image.ReferencedSOPInstanceUID == f"{ROOT}.2.1"
        (segment,) = data.SegmentSequence
        assert (segment.SegmentLabel, segment.SegmentAlgorithmType) == ("lesion", "SEMIAUTOMATIC")
        contours = pydicom.dcmread(io.BytesIO(export("rtstruct").content))
        drawn = contours.ROIContourSequence[0].ContourSequence
        assert {each.ContourImageSequence[0].ReferencedSOPInstanceUID for each in drawn} == {f"{ROOT}.2.1"}
        (feature,) = json.loads(export("geojson").content)["features"]
        assert (feature["properties"]["area_pixels"], feature["geometry"]["plane"]["z"]) == (3, 1)
        assert export("imagej").content[:2] == b"PK"
        answers += [export(kind).content for kind in ("png", "json", "geojson")]
        answers += [client.get(f"/api/{path}").content for path in ("session", "cases", "cases/0", "cases/0/events")]
        for path in series.iterdir():
            damaged = pydicom.dcmread(path)
            damaged.Rows, damaged.Columns = damaged.Columns, damaged.Rows
            damaged.save_as(path)
        changed = export("dicom-seg")
        assert (changed.status, "changed since" in changed.json()["detail"]) == (400, True)
        answers.append(changed.content)
    # Only DICOM carries names, IDs and UIDs: no page, and nothing on disk.
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and series not in path.parents]
    assert kept
    answers += [path.name.encode() + path.read_bytes() for path in kept]
    assert not [word for word in PLANTED for answer in answers if word.encode() in answer]


def test_pictures_have_the_formats_of_pictures(tmp_path: Path) -> None:
    with open_client(tmp_path, [write_images(tmp_path / "images", count=1)]) as (client, _):
        client.post("/api/cases/0/events", {"version": 0, "events": [PAINT | {"slice": 0}]})
        about = json.loads(client.post("/api/cases/0/export", {"format": "geojson"}).content)
        assert [feature["properties"]["class"] for feature in about["features"]] == ["lesion"]
        np.testing.assert_equal(about["features"][0]["properties"]["area_pixels"], 3)
        answer = client.post("/api/cases/0/export", {"format": "dicom-seg"})
        assert (answer.status, "needs a DICOM" in answer.json()["detail"]) == (400, True)
        for kind in FORMATS:
            assert client.post("/api/cases/0/export", {"format": kind}).status in (200, 400)
        assert client.post("/api/cases/0/export", {"format": "dicom"}).status == 422
