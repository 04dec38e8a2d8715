"""Geometry: spacing and place in the patient survive a NIfTI header and a crop."""

import io

import nibabel
import numpy as np
import pytest

from hpunet.data.io.geometry import Geometry
from hpunet.data.io.volumes import decode_nifti, encode_nifti

TILTED = np.array([[0.0, 0.7, 0.2, -10], [-0.6, 0, 0.1, 20], [-0.1, 0, 2.5, 30], [0, 0, 0, 1]])


def test_volume_keeps_its_place_through_a_header() -> None:
    geometry = Geometry.from_affine(TILTED, axes="zyx")
    z, y, x = geometry.spacing or ()
    assert (y, x) == pytest.approx((np.hypot(0.6, 0.1), 0.7))
    assert z == pytest.approx(np.linalg.norm([0.2, 0.1, 2.5]))
    content = encode_nifti(np.zeros((3, 4, 5), np.uint8), header=geometry.nifti_header((3, 4, 5)))
    volume = decode_nifti(content, name="volume")
    assert volume.slices.shape == (3, 4, 5)
    np.testing.assert_allclose(volume.affine, TILTED, atol=1e-5)
    back = Geometry.from_nifti(nibabel.Nifti1Image.from_bytes(_unzipped(content)).header)
    assert back.axes == "zyx"
    assert back.spacing == pytest.approx(geometry.spacing, rel=1e-5)


def _unzipped(content: bytes) -> bytes:
    import gzip

    return gzip.GzipFile(fileobj=io.BytesIO(content)).read()


def test_crop_moves_the_origin() -> None:
    part = Geometry.from_affine(TILTED, axes="zyx").crop(y=2, x=-3, z=1)
    assert part.affine is not None
    np.testing.assert_allclose(part.affine @ [0, 0, 0, 1], TILTED @ [2, -3, 1, 1])
    np.testing.assert_array_equal(part.affine[:3, :3], TILTED[:3, :3])
    assert Geometry("yx", (0.5, 0.5)).crop(y=1, x=1).affine is None


def test_header_without_codes_gives_only_its_spacing_in_mm() -> None:
    header = nibabel.Nifti1Header()
    header.set_data_shape((4, 5, 6))
    header.set_zooms((100, 200, 300))
    header.set_xyzt_units("micron")
    geometry = Geometry.from_nifti(header)
    assert geometry.affine is None
    assert geometry.spacing == pytest.approx((0.3, 0.1, 0.2))
    header.set_sform(np.diag([100.0, 200, 300, 1]), code=1)
    placed = Geometry.from_nifti(header)
    assert placed.affine is not None
    np.testing.assert_allclose(placed.affine, np.diag([0.1, 0.2, 0.3, 1]))


def test_header_of_an_unknown_unit_or_an_impossible_place_is_read_and_copied() -> None:
    header = nibabel.Nifti1Header()
    header.set_data_shape((4, 5, 3))
    header.set_sform(np.diag([2.0, 3, 4, 1]), code=1)
    header["xyzt_units"] = 5  # no code of NIfTI's
    assert Geometry.from_nifti(header).spacing == (4, 2, 3)
    header["srow_x"] = np.inf
    assert Geometry.from_nifti(header).spacing is None
    written = _unzipped(encode_nifti(np.zeros((3, 4, 5), np.uint8), header=header))
    np.testing.assert_array_equal(nibabel.Nifti1Image.from_bytes(written).header["srow_x"], header["srow_x"])


def test_image_with_only_a_spacing() -> None:
    header = Geometry("yx", (0.4, 0.3)).nifti_header((1, 7, 9))
    assert header.get_zooms() == pytest.approx((0.4, 0.3, 1.0))
    assert header.get_data_shape() == (7, 9, 1)
