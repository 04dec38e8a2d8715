from dataclasses import replace

import numpy as np
import pytest
import torch
from warping import EVERYTHING, assert_same, brute_force, make_batch, only

from hpunet.data.augment import apply_warp, augment
from hpunet.data.batch import Batch
from hpunet.data.warps import NO_AUGMENTATION, Warp, draw_warp
from hpunet.errors import DataError


def draw(*, source=(180, 180), crop=(128, 128), b: int, channels=3) -> Warp:
    sizes = {"source_size": source, "crop_size": crop, "channels": channels}
    return draw_warp(EVERYTHING, seed=5, step=17, index=torch.arange(b), **sizes)


@pytest.mark.parametrize(
    ("c", "source", "crop"),
    [(1, (20, 20), (14, 14)), (3, (24, 16), (12, 10)), (1, (9, 15), (13, 11)), (1, (16, 1), (12, 3))],
)
def test_apply_warp_matches_brute_force(c, source, crop):
    batch = make_batch(4, c, 2, *source)
    warp = draw(source=source, crop=crop, b=4, channels=c)
    out = apply_warp(batch, warp, crop_size=crop)
    image, labels, valid, tie = brute_force(batch, warp, crop)
    assert tie.mean() < 0.01
    assert np.array_equal(out.valid.numpy()[~tie], valid[~tie])
    assert np.array_equal(out.labels.numpy().transpose(0, 2, 3, 1)[~tie], labels.transpose(0, 2, 3, 1)[~tie])
    shown = out.image.numpy().transpose(0, 2, 3, 1)
    np.testing.assert_allclose(shown[~tie], image.transpose(0, 2, 3, 1)[~tie], atol=5e-5)
    # The case is worth something only when the crop shows valid, invalid and outside pixels.
    assert 0 < valid.mean() < 1
    assert torch.equal(out.graders, batch.graders)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_augment_without_operations_gives_the_input_back(dtype):
    batch = make_batch(3, 2, 2, 180, 33, dtype=dtype)
    index = torch.arange(3)
    out = augment(batch, settings=NO_AUGMENTATION, crop_size=(180, 33), seed=0, step=0, index=index)
    assert_same(out, batch)


def test_apply_warp_with_identity_parameters_gives_the_input_back():
    batch = make_batch(2, 1, 2, 180, 97)
    affine = torch.tensor([[1.0, 0, 0], [0, 1, 0]], dtype=torch.float64).repeat(2, 1, 1)
    warp = Warp(affine=affine, displacement=torch.zeros(2, 2, 5, 5, dtype=torch.float64), gamma=torch.ones(2))
    warp = replace(warp, saturation=torch.ones(2), contrast=torch.ones(2), gain=torch.ones(2, 1))
    assert_same(apply_warp(batch, warp, crop_size=(180, 97)), batch)


def test_augment_without_operations_crops_the_centre():
    batch = make_batch(2, h=180, w=181)
    out = augment(batch, settings=NO_AUGMENTATION, crop_size=(128, 128), seed=0, step=0, index=torch.arange(2))
    cut = (..., slice(26, -26), slice(26, 154))
    assert_same(out, replace(batch, image=batch.image[cut], labels=batch.labels[cut], valid=batch.valid[cut]))


def test_augment_random_crop_copies_pixels_at_every_position():
    batch = make_batch(1, h=8, w=7)
    seen = set()
    for step in range(100):
        out = augment(
            batch, settings=only(random_crop=True), crop_size=(6, 6), seed=1, step=step, index=torch.arange(1)
        )
        cuts = {(y, x): np.s_[:, :, y : y + 6, x : x + 6] for y in range(3) for x in range(2)}
        places = [place for place, cut in cuts.items() if torch.equal(out.image, batch.image[cut])]
        assert len(places) == 1
        assert torch.equal(out.labels, batch.labels[cuts[places[0]]])
        seen.update(places)
    assert len(seen) == 6


def test_augment_small_source_lands_whole_inside_the_crop():
    batch = make_batch(6, h=5, w=7, valid_share=2)
    out = augment(batch, settings=only(random_crop=True), crop_size=(8, 9), seed=1, step=0, index=torch.arange(6))
    assert out.valid.sum((1, 2)).tolist() == [35] * 6
    assert torch.equal(out.labels[:, 0][out.valid], batch.labels[:, 0].flatten())
    assert (out.image[~out.valid.unsqueeze(1)] == 0).all()


def test_augment_mirroring_is_a_flip():
    batch = make_batch(32, h=6, w=9)
    for axis, settings in ((2, only(mirror_up_down=True)), (3, only(mirror_left_right=True))):
        out = augment(batch, settings=settings, crop_size=(6, 9), seed=1, step=0, index=torch.arange(32))
        flipped = [torch.equal(out.labels[i], batch.labels[i].flip(axis - 1)) for i in range(32)]
        assert 0 < sum(flipped) < 32
        for i in range(32):
            expected = batch.image[i].flip(axis - 1) if flipped[i] else batch.image[i]
            assert torch.equal(out.image[i], expected)


def test_apply_warp_quarter_turn_is_rot90():
    batch = make_batch(2, h=10, w=10)
    affine = torch.tensor([[0.0, 1, 0], [-1, 0, 9]], dtype=torch.float64).repeat(2, 1, 1)
    out = apply_warp(batch, Warp(affine=affine), crop_size=(10, 10))
    assert torch.equal(out.image, batch.image.rot90(1, (2, 3)))
    assert torch.equal(out.labels, batch.labels.rot90(1, (2, 3)))
    assert torch.equal(out.valid, batch.valid.rot90(1, (1, 2)))


def test_apply_warp_clamps_the_image_within_half_a_pixel_and_ends_there():
    batch = make_batch(1, h=4, w=4, valid_share=2)
    shift = torch.tensor([[[1.0, 0, -0.25], [0, 1, -0.75]]], dtype=torch.float64)
    out = apply_warp(batch, Warp(affine=shift), crop_size=(4, 4))
    assert not out.valid[0, :, 0].any()
    assert (out.image[0, 0, :, 0] == 0).all()
    assert out.valid[0, :, 1:].all()
    # Row 0 is clamped to the source's first row; column 1 shows column 0.25 of the source.
    source = batch.image[0, 0]
    torch.testing.assert_close(out.image[0, 0, 0, 1:], 0.75 * source[0, :3] + 0.25 * source[0, 1:])
    torch.testing.assert_close(out.labels[0, :, :, 1:], batch.labels[0, :, :, :3])


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_augment_never_mixes_label_ids(dtype):
    batch = make_batch(4, h=30, w=30)
    ids = torch.randint(0, torch.iinfo(dtype).max, batch.labels.shape, generator=torch.Generator().manual_seed(1))
    batch = replace(batch, labels=ids.to(dtype) * batch.valid.unsqueeze(1))
    out = augment(batch, settings=EVERYTHING, crop_size=(24, 24), seed=2, step=0, index=torch.arange(4))
    assert out.labels.dtype == dtype
    for i in range(4):
        for grader in range(2):
            found = set(out.labels[i, grader].unique().tolist())
            assert len(found) > 50
            assert found <= set(batch.labels[i, grader].unique().tolist()) | {0}
    assert (out.labels.movedim(1, 3)[~out.valid] == 0).all()


def test_augment_depends_on_seed_step_and_index_alone():
    batch = make_batch(3, 2, 2, 24, 20)
    index = torch.tensor([7, 1000, 3])
    settings = {"settings": EVERYTHING, "crop_size": (18, 16), "seed": 4}
    together = augment(batch, **settings, step=9, index=index)
    for i in range(3):
        parts = {name: getattr(batch, name)[i : i + 1] for name in ("image", "labels", "valid", "graders")}
        alone = augment(Batch(**parts), **settings, step=torch.tensor(9), index=index[i : i + 1])
        torch.testing.assert_close(alone.image[0], together.image[i], rtol=0, atol=1e-6)
        assert torch.equal(alone.labels[0], together.labels[i])
        assert torch.equal(alone.valid[0], together.valid[i])


@pytest.mark.parametrize(
    ("name", "factor", "expected"),
    [  # of a pixel of 0.2, 0.4, 0.9, whose mean is 0.5
        ("saturation", 0.0, (0.5, 0.5, 0.5)),
        ("saturation", 2.0, (0.0, 0.3, 1.0)),
        ("contrast", 0.5, (0.35, 0.45, 0.7)),
        ("gain", (2.0, 0.5, 1.0), (0.4, 0.2, 0.9)),
        ("gain", (1.0, 1.0, 1.0), (0.2, 0.4, 0.9)),
    ],
)
def test_apply_warp_changes_colours(name, factor, expected):
    batch = make_batch(1, 3, 1, 2, 2)
    pixel = torch.tensor([0.2, 0.4, 0.9]).view(1, 3, 1, 1)
    batch = replace(batch, image=pixel.expand(1, 3, 2, 2).clone())
    affine = torch.tensor([[[1.0, 0, 1], [0, 1, 0]]], dtype=torch.float64)  # the second row lies outside
    out = apply_warp(batch, Warp(affine=affine, **{name: torch.tensor([factor])}), crop_size=(2, 2))
    torch.testing.assert_close(out.image[0, :, 0], torch.tensor(expected).unsqueeze(1).expand(3, 2))
    assert not out.image[0, :, 1].any()


def test_augment_has_no_gradient():
    batch = make_batch(2)
    batch.image.requires_grad_()
    out = augment(batch, settings=EVERYTHING, crop_size=(8, 8), seed=0, step=0, index=torch.arange(2))
    assert not out.image.requires_grad


def test_augment_ignores_autocast():
    batch = make_batch(2, h=180, w=180)
    key = {"settings": EVERYTHING, "crop_size": (128, 128), "seed": 0, "step": 0, "index": torch.arange(2)}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = augment(batch, **key)
    assert_same(inside, augment(batch, **key))


def test_apply_warp_leaves_its_input_alone():
    batch = make_batch(2)
    before = Batch(batch.image.clone(), batch.labels.clone(), batch.valid.clone(), batch.graders.clone())
    augment(batch, settings=EVERYTHING, crop_size=(8, 8), seed=0, step=0, index=torch.arange(2))
    assert_same(batch, before)


def test_apply_warp_rejects_what_does_not_go_together():
    batch, warp = make_batch(3), draw(b=2)
    with pytest.raises(DataError, match="made for 2 images, the batch has 3"):
        apply_warp(batch, warp, crop_size=(8, 8))
    object.__setattr__(batch, "valid", batch.valid[:, 1:])  # past the checks that only tests switch on
    with pytest.raises(DataError, match="valid"):
        apply_warp(batch, draw(b=3), crop_size=(8, 8))


@pytest.mark.gpu
def test_augment_gives_the_same_on_the_gpu():
    batch = make_batch(4, h=180, w=180)
    on_gpu = Batch(batch.image.cuda(), batch.labels.cuda(), batch.valid.cuda(), batch.graders.cuda())
    key = {"settings": EVERYTHING, "crop_size": (128, 128), "seed": 0, "step": 0}
    got = augment(on_gpu, **key, index=torch.arange(4).cuda())
    expected = augment(batch, **key, index=torch.arange(4))
    assert (got.labels.cpu() != expected.labels).float().mean() < 1e-4
    torch.testing.assert_close(got.image.cpu(), expected.image, rtol=0, atol=1e-4)


@pytest.mark.gpu
def test_augment_can_be_captured_in_a_cuda_graph():
    batch = make_batch(4, h=40, w=40)
    batch = Batch(batch.image.cuda(), batch.labels.cuda(), batch.valid.cuda(), batch.graders.cuda())
    key = {"settings": EVERYTHING, "crop_size": (32, 32), "seed": 0, "index": torch.arange(4).cuda()}
    step = torch.tensor(0, device="cuda")
    augment(batch, **key, step=step)  # what is made once must exist before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = augment(batch, **key, step=step)
    step.fill_(5)
    graph.replay()
    assert_same(out, augment(batch, **key, step=5))
