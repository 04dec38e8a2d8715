"""Volumes with several raters: CURVAS-like cases, BIDS derivatives, raters in the fourth dimension."""

import shutil
import tarfile
from pathlib import Path

import nibabel
import numpy as np
import pytest

from hpunet.data.folder.source import FolderSource, open_folder
from hpunet.data.open import detect_kind, open_splits
from hpunet.data.packs import open_pack, write_pack
from hpunet.data.summary import summarise
from hpunet.errors import DataError

SHAPE = (6, 5, 3)
VOLUME = np.arange(np.prod(SHAPE), dtype=np.int16).reshape(SHAPE)


def mask(number: int) -> np.ndarray:
    """A block that no other number has."""
    labels = np.zeros(SHAPE, np.uint8)
    labels[1 : 3 + number, 1:3, 1] = 1
    return labels


def put(path: Path, voxels: np.ndarray, *, affine: np.ndarray | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.Nifti1Image(voxels, np.eye(4) if affine is None else affine).to_filename(path)
    return path


def put_cases(root: Path) -> Path:
    for case in ("CASE1", "CASE2", "CASE3"):
        put(root / case / "image.nii.gz", VOLUME)
        for rater in (1, 2, 3):
            put(root / case / f"annotation_{rater}.nii.gz", mask(rater))
    return root


def put_bids(root: Path, *, style: str = "{image}_desc-rater{rater}_mask", session: str = "") -> Path:
    for subject in ("sub-01", "sub-02"):
        folder = f"{subject}/{session}anat"
        image = "_".join([subject, *session.strip("/").split(), "T1w"])
        put(root / folder / f"{image}.nii.gz", VOLUME)
        for rater in (1, 2):
            name = style.format(image=image, rater=rater, subject=subject)
            put(root / "derivatives/manual" / folder / f"{name}.nii.gz", mask(rater))
    return root


def check(source: FolderSource, *, raters: int, keys: list[str]) -> None:
    assert (source.info.num_graders, len(source)) == (raters, len(keys) * SHAPE[2])
    assert [identity.key for identity in source.identities[:: SHAPE[2]]] == [f"{key}/z-000" for key in keys]
    for rater in range(raters):
        np.testing.assert_array_equal(source[1].labels[rater], mask(rater + 1)[..., 1])


def test_cases_with_annotations(tmp_path: Path) -> None:
    put_cases(tmp_path)
    (tmp_path / "notes.txt").write_text("about")
    assert detect_kind(str(tmp_path)) == "folder"
    sources = open_splits(str(tmp_path), options={"val_every": 3})
    assert sources["train"].info.grader_names == ("annotation_1", "annotation_2", "annotation_3")
    assert {identity.patient for identity in sources["train"].identities} == {"CASE2", "CASE3"}
    check(open_folder(tmp_path, split="train", val_every=3), raters=3, keys=["CASE2", "CASE3"])
    pack = open_pack(write_pack(sources, tmp_path / "packed"), split="val")
    found = summarise(pack, (pack[i] for i in range(len(pack))))
    assert (found.num_patients, len(found.agreement)) == (1, 3)


def test_cases_in_an_archive_with_a_missing_annotation(tmp_path: Path) -> None:
    root = put_cases(tmp_path / "set")
    (root / "CASE2/annotation_2.nii.gz").unlink()
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        archive.add(root, "set")
    source = open_folder(tmp_path / "set.tar", split="train", val_every=3)
    assert source[0].graders.tolist() == [True, False, True]
    for file in (root / "CASE3").glob("annotation*"):
        file.unlink()
    with pytest.raises(DataError, match=r"CASE3/image\.nii\.gz: has no label map; expected annotation"):
        open_folder(root, split="train")
    put(root / "CASE3/annotation_1.nii.gz", mask(1))
    (root / "CASE3/image.nii.gz").unlink()
    with pytest.raises(DataError, match=r"CASE3: has annotations but no image"):
        open_folder(root, split="train")


@pytest.mark.parametrize(
    ("style", "session", "key"),
    [
        ("{image}_desc-rater{rater}_mask", "", "sub-02_T1w"),
        ("{image}_lesion-rater{rater}", "", "sub-02_T1w"),
        ("{subject}_ses-1_label-lesion_rater-{rater}_mask", "ses-1/", "sub-02_ses-1_T1w"),
    ],
)
def test_bids_derivatives_with_raters(tmp_path: Path, style: str, session: str, key: str) -> None:
    put_bids(tmp_path, style=style, session=session)
    put(tmp_path / "derivatives/other/sub-01/anat/sub-01_T1w_brain.nii.gz", mask(0))
    (tmp_path / "dataset_description.json").write_text("{}")
    assert detect_kind(str(tmp_path)) == "folder"
    source = open_folder(tmp_path, split="train", val_every=2)
    check(source, raters=2, keys=[key])
    assert {identity.patient for identity in source.identities} == {"sub-02"}
    assert all("rater" in name for name in source.info.grader_names)


def test_bids_masks_find_their_own_image(tmp_path: Path) -> None:
    put_bids(tmp_path)
    put(tmp_path / "sub-02/anat/sub-02_FLAIR.nii.gz", VOLUME)  # nobody rated it: not part of the set
    check(open_folder(tmp_path, split="train", val_every=2), raters=2, keys=["sub-02_T1w"])
    odd = put(tmp_path / "derivatives/manual/sub-02/anat/sub-02_rater-3_mask.nii.gz", mask(1))
    with pytest.raises(DataError, match="sub-02_FLAIR, sub-02_T1w all fit"):
        open_folder(tmp_path, split="train")
    odd.unlink()
    odd = put(tmp_path / "derivatives/manual/sub-02/anat/sub-02_T1w_label-core_desc-rater1_mask.nii.gz", mask(1))
    with pytest.raises(DataError, match="same rater"):
        open_folder(tmp_path, split="train")
    odd.unlink()
    shutil.rmtree(tmp_path / "derivatives/manual/sub-01")
    with pytest.raises(DataError, match=r"sub-01_T1w\.nii\.gz: has no label map; .*_rater"):
        open_folder(tmp_path, split="train")


@pytest.mark.parametrize("folder", ["masks", "instances"])
def test_raters_in_the_fourth_dimension(tmp_path: Path, folder: str) -> None:
    for name in ("a", "b"):
        put(tmp_path / f"images/{name}.nii.gz", VOLUME)
        put(tmp_path / f"{folder}/{name}.nii.gz", np.stack([mask(1), mask(2), mask(3)], axis=-1))
    check(open_folder(tmp_path, split="train", val_every=2), raters=3, keys=["b"])
    put(tmp_path / f"{folder}/b.nii.gz", np.stack([mask(1), mask(2)], axis=-1))
    with pytest.raises(DataError, match=r"b\.nii\.gz: 2 raters in the fourth dimension, .*a\.nii\.gz has 3"):
        open_folder(tmp_path, split="train")
    put(tmp_path / f"{folder}/b.nii.gz", np.stack([mask(1)] * 3, axis=-1)[:, :4])
    with pytest.raises(DataError, match=r"b\.nii\.gz: shape \(6, 4, 3\), its image .* \(6, 5, 3\)"):
        open_folder(tmp_path, split="train", val_every=2)[0]
    put(tmp_path / f"{folder}/b.nii.gz", np.stack([mask(1)] * 3, axis=-1), affine=np.diag([-1.0, 1, 1, 1]))
    with pytest.raises(DataError, match="orient"):
        open_folder(tmp_path, split="train", val_every=2)[0]


def test_images_have_three_dimensions(tmp_path: Path) -> None:
    put(tmp_path / "images/a.nii.gz", np.stack([VOLUME] * 2, axis=-1))
    put(tmp_path / "masks/a.nii.gz", mask(1))
    with pytest.raises(DataError, match=r"images/a\.nii\.gz: expected a volume of three dimensions"):
        open_folder(tmp_path, split="train")
