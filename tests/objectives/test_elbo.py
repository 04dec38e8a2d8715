import pytest
from loss_inputs import cross_entropy_by_loops, output_of, random_batch

from hpunet import ELBO


def test_elbo_is_rec_plus_weighted_kl() -> None:
    logits, labels, valid = random_batch()
    terms = ELBO(beta=0.3)(output_of(logits), labels=labels, valid=valid)
    rec = cross_entropy_by_loops(logits, labels, valid).sum() / 2
    assert float(terms.rec) == pytest.approx(rec, rel=1e-12)
    assert float(terms.loss) == pytest.approx(rec + 0.3 * 3, rel=1e-12)
    assert terms.num_kept == valid.sum()
    assert float(terms.rec_per_pixel) == pytest.approx(rec * 2 / int(valid.sum()), rel=1e-12)
