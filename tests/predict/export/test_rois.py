"""GeoJSON and ImageJ ROIs: read back, they are the maps; also of instances and of pictures."""

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import roifile
from dicom_series import SPACING, write_series
from exported import levels, thresholded
from PIL import Image
from skimage.draw import polygon2mask
from untrained import CELLS, make_instance_predictor, make_predictor

from hpunet.data.types import SetInfo
from hpunet.errors import ConfigError
from hpunet.predict.export.geojson import encode_geojson
from hpunet.predict.export.imagej import encode_imagej
from hpunet.predict.export.registry import FORMATS, parse_formats
from hpunet.predict.export.results import Results, hypothesis_regions, label_regions, letters
from hpunet.predict.instances import save_instances
from hpunet.predict.place import Place
from hpunet.sampling.hypotheses import distinct_hypotheses

STREETS = SetInfo("folder", 1, 1, ("background", "road", "car"), stochastic_classes=(1, 2))


def filled(rings: list[Any], shape: tuple[int, int]) -> np.ndarray:
    found = np.zeros(shape, dtype=np.bool_)
    for ring in rings:
        found ^= polygon2mask(shape, np.asarray(ring, dtype=float)[:, ::-1] - 0.5)
    return found


def test_geojson_of_a_cropped_series_is_its_maps(tmp_path: Path) -> None:
    found = thresholded(make_predictor(), write_series(tmp_path, "reversed"), at=(8, 15), slices=(1, 3))
    found.save(tmp_path / "out", formats=["geojson"])
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"outlines.geojson", "z-001", "z-002"}
    content = json.loads((tmp_path / "out" / "outlines.geojson").read_text())
    _, top, left = found.place.offset
    drawn = 0
    for feature in content["features"]:
        about = feature["properties"]
        number = "ABCDE".index(about["hypothesis"])
        if feature["geometry"] is None:
            assert (number, about["share"]) == (4, pytest.approx(1 / 6))
            continue
        z = feature["geometry"]["plane"]["z"]
        mask = np.zeros(found.place.shape[1:], dtype=np.bool_)
        part = found.image[0, z - 1]
        mask[top : top + part.shape[0], left : left + part.shape[1]] = part * 300 - 100.5 > levels()[number]
        rings = [ring for polygon in feature["geometry"]["coordinates"] for ring in polygon]
        assert all(ring[0] == ring[-1] for ring in rings)
        np.testing.assert_array_equal(filled(rings, mask.shape), mask)
        assert about["area_pixels"] == mask.sum()
        assert about["measurements"]["area_mm2"] == pytest.approx(mask.sum() * SPACING[0] * SPACING[1])
        drawn += 1
    assert drawn == 8
    assert content["hpunet"]["pixel_mm"] == {"x": SPACING[1], "y": SPACING[0]}
    np.testing.assert_allclose(content["hpunet"]["affine_ras_mm"], found.place.geometry.affine)


def test_imagej_rois_are_the_maps_in_their_slices(tmp_path: Path) -> None:
    found = thresholded(make_predictor(), write_series(tmp_path, "axial"))
    found.save(tmp_path / "out", formats="imagej")
    rois = roifile.roiread(tmp_path / "out" / "RoiSet.zip")
    assert len(rois) == 16
    for roi in rois:
        mask = found.image[0, roi.position - 1] * 300 - 100.5 > levels()["ABCDE".index(roi.name[0])]
        np.testing.assert_array_equal(filled(roi.coordinates(multi=True), mask.shape), mask)
        y, x = np.nonzero(mask)
        assert (roi.left, roi.top) == (x.min(), y.min())
        assert (roi.right, roi.bottom) == (x.max() + 1, y.max() + 1)
    assert rois[0].properties["share"] == pytest.approx(1 / 3)
    again = encode_imagej(
        Results(Place((1, 2, 2)), (0, 0, 0), label_regions(np.eye(2, dtype=int)[None], description=""), "m", 1, "t")
    )
    with zipfile.ZipFile(io.BytesIO(again["RoiSet.zip"])) as archive:
        assert archive.namelist() == ["0001.roi"]


def test_instances_are_exported_by_their_ids(tmp_path: Path) -> None:
    image = tmp_path / "cells.png"
    Image.fromarray((np.random.default_rng(0).random((24, 32)) * 255).astype(np.uint8)).save(image)
    prediction = make_instance_predictor()(image, num_samples=6)
    formats = ("geojson", "imagej")
    found = save_instances([prediction], tmp_path / "out", alpha=6, formats=formats)["cells"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "instances.json",
        "outlines.geojson",
        "RoiSet.zip",
    }
    features = json.loads((tmp_path / "out" / "outlines.geojson").read_text())["features"]
    assert len(features) == json.loads((tmp_path / "out" / "instances.json").read_text())["num_instances"] > 1
    drawn = np.zeros(found.shape, dtype=int)
    for feature in features:
        rings = [ring for polygon in feature["geometry"]["coordinates"] for ring in polygon]
        drawn += feature["properties"]["instance"] * filled(rings, found.shape)
    np.testing.assert_array_equal(drawn, found)
    rois = {roi.name: roi for roi in roifile.roiread(tmp_path / "out" / "RoiSet.zip")}
    for number in np.unique(found[found > 0]):
        rings = rois[f"instance {number}"].coordinates(multi=True)
        np.testing.assert_array_equal(filled(rings, found.shape), found == number)
    with pytest.raises(ConfigError, match="hpunet instances"):
        prediction.save(tmp_path / "other", formats="geojson")
    assert not (tmp_path / "other").exists()


def test_every_class_of_a_hypothesis_is_a_region() -> None:
    samples = np.zeros((3, 1, 4, 4), dtype=np.uint8)
    samples[0, 0, :2], samples[1:, 0, :, 3] = 1, 2
    samples[0, 0, 3] = 2
    hypotheses = distinct_hypotheses(samples, num_classes=3, classes=(1, 2))
    regions = hypothesis_regions(hypotheses, info=STREETS)
    assert [region.name for region in regions] == ["A: car", "B: road", "B: car"]
    assert regions[0].numbers["share"] == pytest.approx(2 / 3)
    results = Results(Place((1, 10, 10)), (0, 5, 6), regions, "m", 1, "hypotheses")
    (plane,) = results.planes(regions[0])
    assert (plane.z, plane.offset, plane.mask.shape) == (0, (5, 9), (4, 1))
    areas = [
        feature["properties"]["area_pixels"]
        for feature in json.loads(encode_geojson(results)["outlines.geojson"])["features"]
    ]
    assert areas == [4, 8, 4]
    assert [letters(number) for number in (0, 25, 26, 52)] == ["A", "Z", "AA", "BA"]


def test_formats_are_names_or_a_list_with_commas() -> None:
    assert parse_formats(None) is None
    assert parse_formats("png, dicom-seg,png") == ("png", "dicom-seg")
    assert parse_formats(["nifti"]) == ("nifti",)
    for wrong in ("pngs", "png,", "", ()):
        with pytest.raises(ConfigError, match="png,nifti,dicom-seg"):
            parse_formats(wrong)
    assert CELLS.has_instances
    assert set(FORMATS) == {"png", "nifti", "dicom-seg", "rtstruct", "geojson", "imagej"}


def test_missing_packages_are_named_with_their_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    image = np.zeros((16, 16), dtype=np.uint8)
    with pytest.raises(ConfigError, match=r"install roifile.*'export'"):
        replace(make_predictor()(image, num_samples=1)).save(tmp_path / "out", formats="imagej")
    assert list(tmp_path.iterdir()) == []
