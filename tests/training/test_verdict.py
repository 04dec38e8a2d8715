"""The verdict on made-up logs: one sentence per question, and what to change next."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_run import WITHOUT_GECO, tiny_settings, write_tiny_pack

from hpunet.training.loop import train
from hpunet.training.verdict import VERDICT_FILE, verdict

Values = Callable[[int], float]
HEALTHY: dict[str, Values] = {
    "rec": lambda _step: 0.049,
    "lambda": lambda _step: 1.5,
    "kl_0": lambda _step: 1.0,
    "kl_1": lambda _step: 8.0,
    "val_ged2": lambda _step: 0.3,
}
LESS_AND_LESS: Values = lambda step: 1 - step / 200  # noqa: E731
MORE_AND_MORE: Values = lambda step: 1 + step / 10  # noqa: E731


def words_on(changed: dict[str, Values | None], *changes: str, about: dict[str, Any] | None = None) -> str:
    """The verdict on 100 steps with these numbers; those of a healthy run elsewhere."""
    series = {name: value for name, value in {**HEALTHY, **changed}.items() if value is not None}
    log: list[dict[str, Any]] = []
    for step in range(1, 101):
        log.append({"step": step, **{n: v(step) for n, v in series.items() if not n.startswith("val_")}})
        if step % 10 == 0:
            log.append({"step": step, **{n: v(step) for n, v in series.items() if n.startswith("val_")}})
    settings = tiny_settings(
        "optimiser.iterations=100", "model.latent_dims=[1,1]", "model.channels=[4,4,4]", *changes
    )
    return " ".join(verdict(log, settings, about or {}))


CASES: dict[str, tuple[dict[str, Values | None], tuple[str, ...], dict[str, Any], list[str]]] = {
    "healthy": ({}, (), {"constant_map_rec": 0.4}, ["κ was reached", "no longer rises", "Nothing stands out"]),
    "unfinished": ({}, ("optimiser.iterations=5000",), {}, ["iteration 100 of 5,000"]),
    "λ rises": (
        *({"rec": lambda _: 0.2, "lambda": MORE_AND_MORE}, (), {}),
        ["not reached", "λ is 10.6 and still rises", "optimiser.iterations), or raise objective.kappa"],
    ),
    "large KL": ({"kl_1": lambda _: 187.3}, (), {}, ["scale 1 (190 nats)"]),
    "bound": (
        *({"rec": lambda _: 0.2, "lambda": lambda _: 2.0}, ("objective.lambda_max=2.0",), {}),
        ["its bound is 2", "Next: raise objective.lambda_max"],
    ),
    "constant": (
        {},
        (),
        {"constant_map_rec": 0.03},
        ["A constant map meets κ", "lower objective.kappa well below 0.03"],
    ),
    "idle λ": ({"lambda": lambda _: 0.001}, (), {}, ["λ is nearly 0"]),
    "improves": (
        {"val_ged2": LESS_AND_LESS},
        (),
        {},
        ["still improves: GED² 0.500", "0.550 before", "Next: train longer"],
    ),
    "hardly improves": (
        *({"val_ged2": lambda step: 0.5 - step / 1e6}, (), {}),
        ["hardly improves any more: GED² 0.500 at the end is the best"],
    ),
    "overfits": (
        *({"val_ged2": lambda step: 0.2 + abs(step - 50) / 100}, (), {}),
        ["not improve any more: GED² 0.700, the best at iteration 50 was 0.200", "--checkpoint best"],
    ),
    "higher is better": (
        *({"val_iou_rec": lambda step: step / 100}, ("logging.best=iou_rec",), {}),
        ["still improves: IoU_rec 1.000"],
    ),
    "few validations": ({"val_ged2": None, "val_iou_rec": None}, (), {}, ["κ was reached"]),
    "below the line": (
        *({"val_grader_distance": lambda _: 0.4, "val_grader_iou": lambda _: 0.45}, (), {}),
        ["GED² of 0.300, below the line to beat, 0.400", "IoU of 0.45", "perfect sampler has a GED² of 0.200"],
    ),
    "above the line": (
        *({"val_grader_distance": lambda _: 0.1, "val_grader_iou": lambda _: 0.85}, (), {}),
        ["not below the line to beat, 0.100"],
    ),
    "idle coarse scale": (
        *({"kl_0": lambda _: 0.0}, (), {}),
        ["scale 1 (8 nats); scale 0 carries none", "objective.kl_warm_up=[0.1]"],
    ),
    "no coarse latents": (
        *({"kl_0": lambda _: 0.0}, ("model.latent_dims=[0,1]",), {}),
        ["KL (scale 0 is the coarsest): scale 1 (8 nats).", "Nothing stands out"],
    ),
    "no KL": (
        *({"kl_0": lambda _: 0.0, "kl_1": lambda _: 0.0}, (), {}),
        ["No scale carries KL", "lower objective.kappa, so"],
    ),
    "no KL, ELBO": (
        *({"kl_0": lambda _: 0.0, "kl_1": lambda _: 0.0, "lambda": None}, WITHOUT_GECO, {}),
        ["No scale carries KL", "lower objective.beta"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_verdict_says_what_the_numbers_say(case: str) -> None:
    changed, changes, about, expected = CASES[case]
    said = words_on(changed, *changes, about=about)
    for words in expected:
        assert words in said
    assert ("κ was" in said) != (case == "no KL, ELBO")
    assert ("Validation" in said) != (case == "few validations")
    assert ("line to beat" in said) == case.endswith("the line")


def test_verdict_on_a_single_line_knows_no_trend() -> None:
    settings = tiny_settings("model.latent_dims=[1,1]", "model.channels=[4,4,4]")
    said = " ".join(verdict([{"step": 2, "rec": 0.6, "lambda": 1.0}], settings, {}))
    assert "λ is 1." in said
    assert "rises" not in said


def test_training_writes_its_verdict_and_prints_it_last(tmp_path: Path) -> None:
    train(tiny_settings("optimiser.iterations=3"), data=str(write_tiny_pack(tmp_path / "pack")), run=tmp_path / "run")
    said = (tmp_path / "run" / VERDICT_FILE).read_text()
    assert "κ was" in said
    assert "line to beat" in said
    code = "import sys, hpunet.training.verdict; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
