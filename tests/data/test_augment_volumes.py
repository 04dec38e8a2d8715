"""Warped volumes: against a slow twin, against images slice by slice, and windows against whole volumes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from warping import EVERYTHING, EVERYTHING_3D, assert_same, brute_force, make_batch, only

from hpunet.config.settings import AugmentationSettings
from hpunet.data import augment as augment_module
from hpunet.data.augment import apply_warp, augment
from hpunet.data.batch import Batch, Window
from hpunet.data.warps import NO_AUGMENTATION, Warp, draw_warp, needed

SPACING = (5.0, 0.7, 0.8)
RIGID = only(rotation=180.0, scale=(0.8, 1.25), shear=0.1, random_crop=True, mirror_left_right=True)


def draw(settings, *, source, crop, b, channels=1, step=17, spacing=SPACING) -> Warp:
    how = {"source_size": source, "crop_size": crop, "channels": channels, "spacing": spacing}
    return draw_warp(settings, seed=5, step=step, index=torch.arange(b), **how)


def random_augment(batch: Batch, settings, crop, *, step=3) -> Batch:
    index = torch.arange(len(batch.image))
    return augment(batch, settings=settings, crop_size=crop, seed=1, step=step, index=index, spacing=SPACING)


@pytest.mark.parametrize(
    ("c", "source", "crop", "spacing"),
    [
        (1, (7, 12, 10), (6, 9, 8), SPACING),
        (2, (9, 9, 9), (8, 7, 6), None),
        (1, (3, 9, 15), (5, 10, 7), SPACING),  # smaller along one axis
        (1, (1, 8, 9), (1, 7, 8), None),
    ],
)
def test_apply_warp_to_volumes_matches_brute_force(c, source, crop, spacing):
    batch = make_batch(2, c, 2, *source[1:], depth=source[0])
    warp = draw(EVERYTHING_3D, source=source, crop=crop, b=2, channels=c, spacing=spacing)
    out = apply_warp(batch, warp, crop_size=crop)
    image, labels, valid, tie = brute_force(batch, warp, crop)
    assert tie.mean() < 0.01
    assert np.array_equal(out.valid.numpy()[~tie], valid[~tie])
    assert np.array_equal(np.moveaxis(out.labels.numpy(), 1, -1)[~tie], np.moveaxis(labels, 1, -1)[~tie])
    np.testing.assert_allclose(
        np.moveaxis(out.image.numpy(), 1, -1)[~tie], np.moveaxis(image, 1, -1)[~tie], atol=5e-5
    )
    assert 0 < valid.mean() < 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_augment_without_operations_gives_the_volume_back(dtype):
    batch = make_batch(2, 2, 2, 40, 17, depth=9, dtype=dtype)
    assert_same(random_augment(batch, NO_AUGMENTATION, (9, 40, 17)), batch)


def test_identity_that_interpolates_along_depth_gives_the_volume_back():
    batch = make_batch(2, 1, 2, 40, 33, depth=20)
    affine = torch.eye(3, 4, dtype=torch.float64).repeat(2, 1, 1)
    warp = Warp(affine=affine, displacement=torch.zeros(2, 3, 5, 5, 5, dtype=torch.float64), depth_share=0.3)
    assert_same(apply_warp(batch, warp, crop_size=(20, 40, 33)), batch)


def test_volume_without_elastic_deformation_is_warped_slice_by_slice_as_images_are():
    """The same draws in the plane; depth is moved by whole slices, with or without interpolation."""
    batch = make_batch(3, 1, 2, 30, 26, depth=5)
    settings = RIGID.model_copy(update={"gamma": (0.7, 1.5), "contrast": (0.8, 1.2)})
    out = random_augment(batch, settings, (5, 20, 18))
    for z in range(5):
        image = replace(batch, image=batch.image[:, :, z], labels=batch.labels[:, :, z], valid=batch.valid[:, z])
        expected = random_augment(image, settings, (20, 18))
        assert torch.equal(out.labels[:, :, z], expected.labels)
        assert torch.equal(out.valid[:, z], expected.valid)
        torch.testing.assert_close(out.image[:, :, z], expected.image, rtol=0, atol=1e-6)
    warp = draw(RIGID, source=(8, 30, 26), crop=(5, 20, 18), b=3)
    assert warp.keeps_slices
    batch = make_batch(3, 1, 2, 30, 26, depth=8)
    between = apply_warp(batch, replace(warp, keeps_slices=False), crop_size=(5, 20, 18))
    assert_same(apply_warp(batch, warp, crop_size=(5, 20, 18)), between)


@pytest.mark.parametrize("change", ["elastic", "tilt", "translate"])
def test_what_moves_depth_off_whole_slices_interpolates_along_it(change):
    warp = draw(RIGID.model_copy(update={change: 0.1}), source=(8, 30, 26), crop=(5, 20, 18), b=1)
    assert not warp.keeps_slices


def test_random_crop_copies_voxels_at_every_position():
    batch = make_batch(1, h=6, w=5, depth=4)
    seen = set()
    for step in range(100):
        out = random_augment(batch, only(random_crop=True), (3, 5, 4), step=step)
        cuts = {q: np.s_[..., q[0] : q[0] + 3, q[1] : q[1] + 5, q[2] : q[2] + 4] for q in np.ndindex(2, 2, 2)}
        places = [place for place, cut in cuts.items() if torch.equal(out.image, batch.image[cut])]
        assert len(places) == 1
        assert torch.equal(out.labels, batch.labels[cuts[places[0]]])
        assert torch.equal(out.valid, batch.valid[cuts[places[0]]])
        seen.update(places)
    assert len(seen) == 8


def test_small_volume_lands_whole_inside_the_crop():
    batch = make_batch(6, h=5, w=7, depth=3, valid_share=2)
    out = random_augment(batch, only(random_crop=True), (6, 8, 9))
    assert out.valid.sum((1, 2, 3)).tolist() == [3 * 5 * 7] * 6
    assert torch.equal(out.labels[:, 0][out.valid], batch.labels[:, 0].flatten())
    assert (out.image[~out.valid.unsqueeze(1)] == 0).all()


def test_mirroring_front_back_is_a_flip_of_the_slices():
    batch = make_batch(32, h=4, w=5, depth=6)
    out = random_augment(batch, only(mirror_front_back=True), (6, 4, 5))
    flipped = [torch.equal(out.labels[i], batch.labels[i].flip(1)) for i in range(32)]
    assert 0 < sum(flipped) < 32
    for i in range(32):
        assert torch.equal(out.image[i], batch.image[i].flip(1) if flipped[i] else batch.image[i])


def test_quarter_tilt_of_cubic_voxels_turns_depth_into_the_plane():
    batch = make_batch(1, h=6, w=6, depth=6)
    affine = torch.tensor([[0.0, -1, 0, 5], [1, 0, 0, 0], [0, 0, 1, 0]], dtype=torch.float64)[None]
    out = apply_warp(batch, Warp(affine=affine), crop_size=(6, 6, 6))
    assert torch.equal(out.image, batch.image.flip(2).transpose(2, 3))
    assert torch.equal(out.labels, batch.labels.flip(2).transpose(2, 3))


@pytest.mark.parametrize("dtype", [torch.int16, torch.int64])
def test_augment_never_mixes_label_ids_of_volumes(dtype):
    batch = make_batch(2, h=14, w=13, depth=9)
    ids = torch.randint(0, torch.iinfo(dtype).max, batch.labels.shape, generator=torch.Generator().manual_seed(1))
    batch = replace(batch, labels=ids.to(dtype) * batch.valid.unsqueeze(1))
    out = random_augment(batch, EVERYTHING_3D, (8, 12, 10))
    assert out.labels.dtype == dtype
    for i in range(2):
        found = set(out.labels[i, 0].unique().tolist())
        assert len(found) > 50
        assert found <= set(batch.labels[i, 0].unique().tolist()) | {0}
    assert (out.labels.movedim(1, -1)[~out.valid] == 0).all()


def test_augment_of_volumes_depends_on_seed_step_and_index_alone():
    batch = make_batch(3, 2, 2, 20, 18, depth=9)
    index = torch.tensor([7, 1000, 3])
    how = {"settings": EVERYTHING_3D, "crop_size": (7, 14, 12), "seed": 4, "spacing": SPACING}
    together = augment(batch, **how, step=9, index=index)
    for i in range(3):
        parts = {name: getattr(batch, name)[i : i + 1] for name in ("image", "labels", "valid", "graders")}
        alone = augment(Batch(**parts), **how, step=torch.tensor(9), index=index[i : i + 1])
        torch.testing.assert_close(alone.image[0], together.image[i], rtol=0, atol=1e-6)
        assert torch.equal(alone.labels[0], together.labels[i])
        assert torch.equal(alone.valid[0], together.valid[i])


def test_slabs_of_any_depth_give_the_same(monkeypatch):
    batch = make_batch(2, h=20, w=18, depth=9)
    whole = random_augment(batch, EVERYTHING_3D, (7, 14, 12))
    for voxels in (1, 2 * 2 * 14 * 12):  # one slice at once, and three of seven
        monkeypatch.setattr(augment_module, "_SLAB_CPU", voxels)
        assert_same(random_augment(batch, EVERYTHING_3D, (7, 14, 12)), whole)


def test_augment_of_volumes_ignores_autocast():
    batch = make_batch(2, h=40, w=36, depth=9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = random_augment(batch, EVERYTHING_3D, (7, 24, 20))
    assert_same(inside, random_augment(batch, EVERYTHING_3D, (7, 24, 20)))


def window(batch: Batch, corner: list[list[int]], extent: tuple[int, ...]) -> Batch:
    """Parts of a batch as the only part that was read: what is beyond the volume is padded with noise."""
    size = batch.valid.shape[1:]
    generator = torch.Generator().manual_seed(0)
    parts = []
    for i, place in enumerate(corner):
        cut = [slice(start, start + side) for start, side in zip(place, extent, strict=True)]
        there = [slice(0, min(side, end - start)) for start, side, end in zip(place, extent, size, strict=True)]
        image = torch.rand(batch.image.shape[1], *extent, generator=generator)
        labels = torch.full((batch.labels.shape[1], *extent), 77, dtype=batch.labels.dtype)
        valid = torch.ones(extent, dtype=torch.bool)
        image[:, *there], labels[:, *there] = batch.image[i][:, *cut], batch.labels[i][:, *cut]
        valid[*there] = batch.valid[i][*cut]
        parts.append((image, labels, valid))
    image, labels, valid = map(torch.stack, zip(*parts, strict=True))
    place = Window(corner=torch.tensor(corner), size=torch.tensor([size] * len(corner)))
    return Batch(image=image, labels=labels, valid=valid, graders=batch.graders, window=place)


@pytest.mark.parametrize("source", [(30, 60, 50), (6, 10, 50)])
@pytest.mark.parametrize("settings", [EVERYTHING_3D, AugmentationSettings(), EVERYTHING, RIGID, NO_AUGMENTATION])
def test_window_with_what_the_warp_needs_gives_the_same_to_the_bit(source, settings):
    crop, whole = (8, 14, 12), make_batch(3, 1, 2, *source[1:], depth=source[0])
    for step in range(4):
        warp = draw_warp(
            settings,
            seed=1,
            step=step,
            index=torch.arange(3),
            spacing=SPACING,
            source_size=source,
            crop_size=crop,
        )
        first, last = needed(warp, crop_size=crop)
        extent = (last - first + 1).amax(0)
        extent = torch.minimum(extent, torch.tensor(source) + 2)  # a volume that is smaller is padded
        corner = torch.minimum(first, torch.tensor(source) - extent).clamp(min=0).tolist()
        part = window(whole, corner, tuple(extent.tolist()))
        if source[0] == 30:
            assert part.valid.numel() < whole.valid.numel() / 1.5
        expected = random_augment(whole, settings, crop, step=step)
        assert expected.valid.any()
        assert_same(random_augment(part, settings, crop, step=step), expected)


def test_what_a_window_lacks_is_invalid():
    batch = make_batch(1, h=10, w=9, depth=8, valid_share=2)
    part = window(batch, [[2, 3, 0]], (4, 5, 9))
    out = random_augment(part, NO_AUGMENTATION, (8, 10, 9))
    expected = torch.zeros(1, 8, 10, 9, dtype=torch.bool)
    expected[:, 2:6, 3:8] = True
    assert torch.equal(out.valid, expected)
    assert torch.equal(out.image[:, 0][expected], batch.image[:, 0][expected])
    assert not out.image[:, 0][~expected].any()


@pytest.mark.gpu
def test_augment_of_volumes_gives_the_same_on_the_gpu():
    batch = make_batch(2, h=60, w=60, depth=20)
    how = {"settings": EVERYTHING_3D, "crop_size": (16, 48, 48), "seed": 0, "step": 0, "spacing": SPACING}
    got = augment(batch.to(torch.device("cuda")), **how, index=torch.arange(2).cuda())
    expected = augment(batch, **how, index=torch.arange(2))
    assert (got.labels.cpu() != expected.labels).float().mean() < 1e-4
    torch.testing.assert_close(got.image.cpu(), expected.image, rtol=0, atol=1e-4)


@pytest.mark.gpu
def test_augment_of_volumes_can_be_captured_in_a_cuda_graph():
    batch = make_batch(2, h=40, w=40, depth=12).to(torch.device("cuda"))
    how = {"settings": EVERYTHING_3D, "crop_size": (8, 32, 32), "seed": 0, "spacing": SPACING}
    how["index"], step = torch.arange(2).cuda(), torch.tensor(0, device="cuda")
    augment(batch, **how, step=step)  # what is made once must exist before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = augment(batch, **how, step=step)
    step.fill_(5)
    graph.replay()
    assert_same(out, augment(batch, **how, step=5))
