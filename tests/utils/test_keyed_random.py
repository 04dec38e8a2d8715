import math
from functools import reduce

import pytest
import torch
from scipy import stats

from hpunet.errors import ConfigError
from hpunet.utils.keyed_random import keyed_normal, keyed_uniform

KEY = {"seed": 3, "step": 11, "stream": 2}
MASK = (1 << 64) - 1


def slow_absorb(state: int, part: int) -> int:
    """One round of the hash in Python's unbounded integers."""
    x = (state + (part + 1) * 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def test_slow_twin_gives_the_published_splitmix64_outputs():
    outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [slow_absorb(1234567, n) for n in range(3)] == outputs


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
@pytest.mark.parametrize("step", [0, 12345, 2**40])
def test_keyed_uniform_matches_slow_twin(seed, step):
    index = torch.tensor([0, 1, 7, 2**33, 2**62])
    got = keyed_uniform(seed=seed, step=step, index=index, stream=5, count=9)
    for row, i in enumerate(index.tolist()):
        expected = [(reduce(slow_absorb, (5, step, i, c), seed) >> 40) / 2**24 for c in range(9)]
        assert got[row].tolist() == expected


def test_keyed_uniform_pinned_values():
    got = keyed_uniform(**KEY, index=torch.tensor([0, 1]), count=3)
    assert (got * 2**24).long().tolist() == [[2137880, 4606768, 12409956], [358947, 8265253, 16256520]]


def test_keyed_normal_pinned_values():
    got = keyed_normal(**KEY, index=torch.tensor([0, 1]), count=3)
    expected = torch.tensor([[-0.08033333, 0.51591259, 1.54788065], [-0.20775454, 0.00960454, -0.88306636]])
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("draw", [keyed_uniform, keyed_normal])
def test_keyed_rows_do_not_depend_on_batch_or_count(draw):
    index = torch.tensor([5, 900, 3])
    together = draw(**KEY, index=index, count=7)
    for row in range(3):
        assert torch.equal(draw(**KEY, index=index[row : row + 1], count=4)[0], together[row, :4])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_keyed_uniform_takes_step_as_tensor(dtype):
    key = {"seed": 1, "stream": 0, "index": torch.arange(4, dtype=dtype), "count": 5}
    as_tensor = keyed_uniform(**key, step=torch.tensor(77, dtype=dtype))
    assert torch.equal(as_tensor, keyed_uniform(**key, step=77))


def test_keyed_uniform_is_uniform():
    values = keyed_uniform(**KEY, index=torch.arange(400), count=500).flatten()
    assert values.dtype == torch.float32
    assert values.min() >= 0
    assert values.max() < 1
    counts = torch.histc(values, bins=256, min=0, max=1)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    assert stats.kstest(values[:50_000].numpy(), "uniform").pvalue > 1e-3
    # All 24 bits are fair coins: a standard deviation of a mean is 0.5 / sqrt(n).
    bits = (values * 2**24).long().unsqueeze(1) >> torch.arange(24) & 1
    assert (bits.double().mean(0) - 0.5).abs().max() < 5 * 0.5 / math.sqrt(len(values))


@pytest.mark.parametrize("part", ["seed", "stream", "step", "index", "count"])
def test_keyed_uniform_neighbouring_keys_are_independent(part):
    def draw(offset: int) -> torch.Tensor:
        key = {"seed": 40, "stream": 3, "step": 1000, "index": torch.arange(1000), "count": 64}
        if part == "count":
            return keyed_uniform(**{**key, "count": 64 + offset})[:, offset:].flatten()
        return keyed_uniform(**{**key, part: key[part] + offset}).flatten()

    first = draw(0)
    for offset in (1, 2, 8):
        second = draw(offset)
        assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 5 / math.sqrt(len(first))
        table = torch.bincount((first * 8).long() * 8 + (second * 8).long(), minlength=64)
        assert stats.chisquare(table.numpy()).pvalue > 1e-4


def test_keyed_uniform_key_parts_are_not_interchangeable():
    index = torch.tensor([2])
    draws = {
        keyed_uniform(seed=a, stream=b, step=c, index=index, count=1).item()
        for a, b, c in [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0), (1, 1, 0), (0, 1, 1), (1, 0, 1)]
    }
    assert len(draws) == 7


def test_keyed_normal_is_normal():
    values = keyed_normal(**KEY, index=torch.arange(400), count=501).double()
    n = values.numel()
    assert abs(values.mean()) < 5 / math.sqrt(n)
    assert abs(values.var() - 1) < 5 * math.sqrt(2 / n)
    assert abs((values**3).mean()) < 5 * math.sqrt(15 / n)
    assert abs((values**4).mean() - 3) < 5 * math.sqrt(96 / n)
    assert stats.kstest(values.flatten()[:50_000].numpy(), "norm").pvalue > 1e-3
    # The two halves of a Box–Muller pair share a radius, hence the look at the squares too.
    cosine, sine = values[:, 0:500:2].flatten(), values[:, 1:500:2].flatten()
    for a, b in [(cosine, sine), (cosine**2, sine**2)]:
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 5 / math.sqrt(len(a))


@pytest.mark.parametrize(("part", "value"), [("seed", -1), ("step", -1), ("stream", 2**63)])
def test_keyed_uniform_rejects_words_out_of_range(part, value):
    with pytest.raises(ConfigError, match=part):
        keyed_uniform(**{**KEY, part: value}, index=torch.arange(2), count=1)


@pytest.mark.gpu
def test_keyed_uniform_has_the_same_bits_on_the_gpu():
    index = torch.arange(1000)
    step = torch.tensor(9, device="cuda")
    on_gpu = keyed_uniform(seed=1, step=step, index=index.cuda(), stream=0, count=33)
    assert torch.equal(on_gpu.cpu(), keyed_uniform(seed=1, step=9, index=index, stream=0, count=33))
