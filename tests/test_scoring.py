"""Images as evaluation sees them: what the prior is given of several graders."""

import torch

from hpunet.batch import Batch
from hpunet.scoring import prior_inputs


def test_prior_is_given_the_visible_labels_of_the_first_grader_there_is() -> None:
    """The first image lacks its first grader: the map that stands there is no empty grading."""
    labels = torch.zeros(2, 3, 8, 8, dtype=torch.int32)
    labels[:, 1], labels[1, 0], labels[:, 2] = 1, 2, 3
    batch = Batch(
        image=torch.rand(2, 1, 8, 8),
        labels=labels,
        valid=torch.ones(2, 8, 8, dtype=torch.bool),
        graders=torch.tensor([[False, True, True], [True, True, False]]),
    )
    image, cond = prior_inputs(batch, places=[5, 6], extrapolate=True, num_classes=4)
    assert cond is not None
    visible, shown = cond[:, 0] > 0, cond[:, 1:]
    for i, given in enumerate((1, 2)):
        assert shown[i, given].equal(visible[i].float())
        assert not shown[i, [k for k in range(4) if k != given]].any()
    assert image[:, 0].equal(torch.where(visible, batch.image[:, 0], 0))
