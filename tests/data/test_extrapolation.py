"""Hidden parts of images, and what the prior is told."""

import pytest
import torch

from hpunet.data.extrapolation import NUM_UNIFORMS, hide, visibility
from hpunet.errors import DataError


@pytest.mark.parametrize(("height", "width"), [(4, 4), (5, 7), (16, 9), (64, 32)])
def test_visibility_hides_a_quarter_to_half_along_a_side(height: int, width: int) -> None:
    uniform = torch.rand(300, NUM_UNIFORMS, generator=torch.Generator().manual_seed(0))
    uniform[0], uniform[1] = 0, 1 - 2**-24
    hidden = ~visibility(uniform, height=height, width=width)
    share = hidden.double().mean((1, 2))
    assert share.min() >= 0.25
    assert share.max() <= 0.5
    touches = torch.stack([edge.any(1) for edge in (hidden[:, 0], hidden[:, -1], hidden[..., 0], hidden[..., -1])])
    assert touches.any(0).all()
    rows, columns = hidden.any(2).sum(1), hidden.any(1).sum(1)
    assert torch.equal(rows * columns, hidden.sum((1, 2)))  # a filled rectangle, since rows and columns are runs
    assert ((rows == height) | (columns == width)).double().mean() >= 0.4


@pytest.mark.parametrize(
    ("side", "edge"), [(0.0, (0, None)), (0.25, (-1, None)), (0.5, (None, 0)), (0.75, (None, -1))]
)
def test_visibility_half_plane_lies_on_the_side_drawn(side: float, edge: tuple[int | None, int | None]) -> None:
    visible = visibility(torch.tensor([[side, 0.0, 0.0, 0.0, 0.0]]), height=8, width=12)[0]
    row, column = edge
    strip = visible[row] if row is not None else visible[:, column]
    assert not strip.any()
    assert (~visible).sum() == 8 * 12 // 4


def test_hide_masks_image_and_tells_the_prior() -> None:
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(2, 3, 8, 8, generator=generator) + 0.1
    labels = torch.randint(0, 4, (2, 8, 8), generator=generator)
    uniform = torch.rand(2, NUM_UNIFORMS, generator=generator)
    hidden = hide(image=image, labels=labels, uniform=uniform, num_classes=4)
    shown = hidden.visible.unsqueeze(1)
    assert torch.equal(hidden.image, torch.where(shown, image, 0))
    assert hidden.cond.shape == (2, 1 + 4, 8, 8)
    assert torch.equal(hidden.cond[:, 0], hidden.visible.float())
    assert torch.equal(hidden.cond[:, 1:].sum(1), hidden.visible.float())
    assert torch.equal(hidden.cond[:, 1:].argmax(1)[hidden.visible], labels[hidden.visible])
    again = hide(image=image[1:], labels=labels[1:], uniform=uniform[1:], num_classes=4)
    assert torch.equal(again.cond[0], hidden.cond[1])


def test_visibility_refuses_tiny_images() -> None:
    with pytest.raises(DataError, match="3x8"):
        visibility(torch.zeros(1, NUM_UNIFORMS), height=3, width=8)
