import numpy as np

from hpunet.pictures import PALETTE, grey_or_colour, label_colours, overlay, sheet


def test_label_colours_tell_labels_apart_and_keep_background_black() -> None:
    labels = np.arange(16).reshape(4, 4)
    colours = label_colours(labels).reshape(-1, 3)
    assert colours[0].tolist() == [0, 0, 0]
    assert len({tuple(c) for c in colours.tolist()}) == 16
    assert (colours[1] == PALETTE[1]).all()


def test_overlay_leaves_background_alone_and_draws_borders_in_full() -> None:
    image = np.full((1, 5, 5), 0.5, dtype=np.float32)
    labels = np.zeros((5, 5), dtype=np.int64)
    labels[1:4, 1:4] = 1
    painted = overlay(image=image, labels=labels)
    assert (painted[0] == 128).all()
    assert (painted[1, 1] == PALETTE[1]).all()  # border
    assert painted[2, 2].tolist() not in ([128] * 3, PALETTE[1].tolist())  # inside: a mixture


def test_grey_or_colour_clips_and_repeats() -> None:
    assert grey_or_colour(np.array([[[-1.0, 0.5, 2.0]]]))[0].tolist() == [[0] * 3, [128] * 3, [255] * 3]
    assert grey_or_colour(np.stack([np.full((1, 1), v) for v in (0.0, 0.5, 1.0)]))[0, 0].tolist() == [0, 128, 255]


def test_sheet_places_every_tile_and_fits_captions() -> None:
    red = np.zeros((10, 20, 3), dtype=np.uint8)
    red[..., 0] = 255
    page = np.asarray(sheet([[red, red], [red]], columns=["a", "b"], row_titles=["one", "two"], title="t", tile=40))
    is_red = (page == [255, 0, 0]).all(axis=2)
    assert is_red.sum() == 3 * 40 * 80
    assert sheet([[red]], title="a title much longer than the picture is wide").width > 200
