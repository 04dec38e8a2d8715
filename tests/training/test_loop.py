"""The loop: what it logs, saves and refuses, and how it stops."""

import errno
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_run import PUNET, WITHOUT_GECO, tiny_settings, untrained_model, write_tiny_pack

from hpunet.cli.progress import TrainingProgress
from hpunet.config.settings import Settings
from hpunet.data.open import pack_data
from hpunet.data.packs import open_pack
from hpunet.errors import CheckpointError, ConfigError, DivergenceError
from hpunet.training import state as state_module
from hpunet.training.build import learning_rate_at
from hpunet.training.loggers import LOG_FILE, read_log
from hpunet.training.loop import prepare_data, train
from hpunet.training.state import Training
from hpunet.training.validation import Validation
from hpunet.utils import files as storage
from hpunet.utils.files import parse_json
from hpunet.utils.signals import Interrupted, stop_on_signals
from hpunet.weights.checkpoints import latest_checkpoint, load_checkpoint, save_checkpoint
from hpunet.weights.load import load_trained, publish

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_pack(tmp_path_factory.mktemp("pack") / "pack")


def quietly(settings: Settings, *, pack: Path | str, run: Path, **options: Any) -> dict[str, float]:
    return train(settings, data=str(pack), run=run, device=CPU, **{"say": lambda _line: None, **options})


def log_of(run: Path, name: str) -> list[float]:
    return [line[name] for line in read_log(run / LOG_FILE) if name in line]


# One line a step: seeded, on synthetic lesions. A refactor leaves these as they are.
GOLDEN = {
    "geco": ((), [27.175886, 27.82177, 30.221302, 24.573566, 22.257889]),
    "elbo": (WITHOUT_GECO, [150.31688, 158.02293, 177.42676, 158.9258, 162.56506]),
    "punet": (PUNET, [116.57165, 139.18604, 149.57306, 151.5464, 153.72015]),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_train_follows_the_golden_losses(case: str, pack: Path, tmp_path: Path) -> None:
    changes, expected = GOLDEN[case]
    settings = tiny_settings(*changes, "optimiser.iterations=5")
    quietly(settings, pack=pack, run=tmp_path)
    assert log_of(tmp_path, "loss") == pytest.approx(expected, rel=1e-5)


def test_train_overfits_a_toy(pack: Path, tmp_path: Path) -> None:
    changes = ("optimiser.iterations=100", "optimiser.batch_size=4", "optimiser.learning_rates=[5e-3]")
    calm = ("augmentation.elastic=0.0", "augmentation.rotation=0.0", "augmentation.shear=0.0")
    watch = ("logging.validate_every=100", "logging.checkpoint_every=100")
    settings = tiny_settings(*changes, *calm, *watch, *WITHOUT_GECO, "augmentation.scale=[1.0, 1.0]")
    quietly(settings, pack=pack, run=tmp_path)
    losses = log_of(tmp_path, "loss")
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])


def test_train_logs_what_a_step_returns_with_the_rate_it_used(pack: Path, tmp_path: Path) -> None:
    settings = tiny_settings("optimiser.iterations=4", "optimiser.learning_rates=[1e-3, 1e-4]")
    quietly(settings, pack=pack, run=tmp_path / "run")
    lines = [line for line in read_log(tmp_path / "run" / LOG_FILE) if "loss" in line]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert [line["lr"] for line in lines] == [1e-3, 1e-3, 1e-4, 1e-4]
    training = Training(settings, pack_path=pack, run=tmp_path / "other", device=CPU)
    for line in lines:
        batch = training.steps[training.step]
        for group in training.optimiser.param_groups:
            group["lr"] = line["lr"]
        terms, norm = training.train_step(batch, step=training.step, positions=training.positions)
        training.step += 1
        assert terms.constraint is not None
        assert terms.lambda_ is not None
        assert line == {
            "step": training.step,
            "loss": float(terms.loss),
            "rec": float(terms.rec * 4 / terms.num_kept),
            "kl": float(terms.kl.sum()),
            "kl_0": float(terms.kl[0]),
            "lr": line["lr"],
            "gradient_norm": float(norm),
            "skipped": 0,
            "lambda": float(terms.lambda_),
            "constraint": float(terms.constraint),
        }


def test_learning_rate_is_piecewise_constant() -> None:
    evenly = tiny_settings("optimiser.iterations=9", "optimiser.learning_rates=[3.0, 2.0, 1.0]").optimiser
    assert [learning_rate_at(evenly, step) for step in range(9)] == [3, 3, 3, 2, 2, 2, 1, 1, 1]
    given = tiny_settings("optimiser.learning_rates=[3.0, 2.0]", "optimiser.boundaries=[5]").optimiser
    assert [learning_rate_at(given, step) for step in (0, 4, 5, 11)] == [3, 3, 2, 2]


def poisoned_model(*, from_call: int) -> Callable[..., Any]:
    """`build_model`, with one weight whose gradient is NaN from the n-th backward pass on."""
    build, calls = state_module.build_model, []

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return torch.full_like(gradient, torch.nan) if len(calls) >= from_call else gradient

    def build_poisoned(*arguments: Any, **options: Any) -> Any:
        model = build(*arguments, **options)
        next(model.parameters()).register_hook(spoil)
        return model

    return build_poisoned


def test_train_stops_with_what_diverged_and_keeps_good_weights(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "build_model", poisoned_model(from_call=4))
    settings = tiny_settings("optimiser.max_consecutive_skips=3", "logging.checkpoint_every=1")
    message = r"3 consecutive .* iteration 6 \(gradient_norm, gradient of "
    with pytest.raises(DivergenceError, match=message) as caught:
        quietly(settings, pack=pack, run=tmp_path)
    assert "\n" not in str(caught.value)
    assert log_of(tmp_path, "skipped") == [0, 0, 0, 1, 2]
    found = [latest_checkpoint(tmp_path / "checkpoints")]
    assert found[0] is not None
    assert (found[0].step, found[0].state["skipped"]) == (5, 2)
    good = load_checkpoint(tmp_path / "checkpoints" / "step-00000003")
    for group, tensors in found[0].tensors.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, good.tensors[group][name]), f"{group} {name}"
            assert tensor.isfinite().all()


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "read-only")])
def test_train_that_cannot_save_says_so_and_keeps_the_last_checkpoint(
    number: int, words: str, pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = storage.write_synced

    def fail_at_ten(path: Path, content: bytes) -> None:
        if "step-00000010" in str(path) and path.name == "state.json":
            raise OSError(number, os.strerror(number))
        write(path, content)

    monkeypatch.setattr(storage, "write_synced", fail_at_ten)
    with pytest.raises(CheckpointError, match=f"step-00000010: cannot be written: .*{words}"):
        quietly(tiny_settings(), pack=pack, run=tmp_path)
    found = latest_checkpoint(tmp_path / "checkpoints")
    assert found is not None
    assert (found.step, found.skipped) == (5, [])
    monkeypatch.undo()
    quietly(tiny_settings(), pack=pack, run=tmp_path, resume=True)
    assert log_of(tmp_path, "loss") == log_of(finished(tmp_path.parent / f"whole-{number}", pack), "loss")


def finished(run: Path, pack: Path) -> Path:
    quietly(tiny_settings(), pack=pack, run=run)
    return run


REFUSED = {
    "another batch size": (("optimiser.batch_size=2",), r"different settings \(optimiser.batch_size\)"),
    "another model": (("model.channels=[4, 8]",), r"different settings \(model.channels\)"),
    "another seed": (("seed=1",), r"different settings \(seed\)"),
    "other plateaus": (("optimiser.iterations=20",), r"\(optimiser.boundaries, optimiser.learning_rates\)"),
    "faded otherwise": (("augmentation.fade=[1, 2]",), r"different settings \(augmentation.fade\)"),
}


def test_resume_refuses_other_settings_in_one_line(pack: Path, tmp_path: Path) -> None:
    rates = "optimiser.learning_rates=[1e-3, 1e-4]"
    quietly(tiny_settings("optimiser.iterations=5", rates), pack=pack, run=tmp_path)
    for what, (changes, message) in REFUSED.items():
        settings = tiny_settings("optimiser.iterations=5", rates, *changes)
        with pytest.raises(CheckpointError, match=message) as caught:
            quietly(settings, pack=pack, run=tmp_path, resume=True)
        assert "\n" not in str(caught.value), what
    with pytest.raises(ConfigError, match="--resume"):
        quietly(tiny_settings("optimiser.iterations=5", rates), pack=pack, run=tmp_path)


def test_resume_refuses_other_data_even_when_packed_by_the_run_itself(tmp_path: Path) -> None:
    settings = tiny_settings("optimiser.iterations=5")
    quietly(settings, pack="synthetic:lesions", run=tmp_path)
    with pytest.raises(CheckpointError, match="different data") as caught:
        quietly(settings, pack="synthetic:neurites", run=tmp_path, resume=True)
    assert "\n" not in str(caught.value)


def test_prepare_data_takes_a_pack_as_it_is_and_packs_each_origin_once(pack: Path, tmp_path: Path) -> None:
    assert prepare_data(str(pack), options={}, run=tmp_path) == pack
    made = [prepare_data("synthetic:lesions", options={"num_images": n, "size": 16}, run=tmp_path) for n in (4, 8, 4)]
    assert made[0] == made[2] != made[1]
    assert [len(open_pack(path, split="train")) for path in made] == [4, 8, 4]


def write_images(folder: Path) -> Path:
    """Images of one grader who marks every second one."""
    for i, name in ((i, name) for i in range(6) for name in ("images", "masks")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        marked = np.full((16, 16), i % 2, dtype=np.uint8)
        Image.fromarray(marked if name == "masks" else 40 * i + marked).save(folder / name / f"{i}.png")
    return folder


def settings_of_images() -> Settings:
    settings = tiny_settings("optimiser.iterations=2")
    return settings.model_copy(update={"data": settings.data.model_copy(update={"options": {"val_every": 3}})})


def correct(data: Path) -> None:
    for i in range(6):
        Image.fromarray(np.full((16, 16), i % 3 > 0, dtype=np.uint8)).save(data / "masks" / f"{i}.png")


def test_train_packs_again_what_was_corrected_before_the_first_checkpoint(tmp_path: Path) -> None:
    data, run, settings = write_images(tmp_path / "data"), tmp_path / "run", settings_of_images()

    def stop(step: int, _numbers: dict[str, float]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quietly(settings, pack=data, run=run, watch=stop)
    (packed,) = run.glob("data-*")
    correct(data)
    said: list[str] = []
    quietly(settings, pack=data, run=run, say=said.append)
    assert [line for line in said if "changed" in line and "masks/" in line]
    quietly(settings, pack=data, run=tmp_path / "anew")
    assert log_of(run, "loss") == log_of(tmp_path / "anew", "loss")
    assert list(run.glob("*data-*")) == [packed]


def test_resume_on_corrected_labels_says_so_and_can_go_on_with_the_old_ones(tmp_path: Path) -> None:
    data, run, settings = write_images(tmp_path / "data"), tmp_path / "run", settings_of_images()
    quietly(settings, pack=data, run=run)
    (packed,) = run.glob("data-*")
    quietly(settings, pack=data, run=run, resume=True)  # nothing has changed
    content = (packed / "train/labels.bin").read_bytes()
    correct(data)
    with pytest.raises(CheckpointError, match=rf"masks/.*--out.*--data {packed}"):
        quietly(settings, pack=data, run=run, resume=True)
    assert (packed / "train/labels.bin").read_bytes() == content
    quietly(settings, pack=packed, run=run, resume=True)

    shutil.rmtree(packed)  # to save space: without it, the checkpoint itself tells
    with pytest.raises(CheckpointError, match="different data"):
        quietly(settings, pack=data, run=run, resume=True)


def test_packs_that_cannot_be_read_are_made_again_and_unused_ones_named(tmp_path: Path) -> None:
    data, run, said = write_images(tmp_path / "data"), tmp_path / "run", []
    how: dict[str, Any] = {"options": {"val_every": 3}, "run": run, "say": said.append}
    packed = prepare_data(str(data), **how)
    made = (packed / "pack.json").read_bytes()
    (packed / "pack.json").write_bytes(made.replace(b"made_of", b"made_in"))
    shutil.copytree(packed, packed.with_name(f".old-hpunet-{packed.name}"))  # as a kill leaves it
    assert prepare_data(str(data), **how) == packed
    assert (packed / "pack.json").read_bytes() == made
    assert len(said) == 1
    assert list(run.glob("*data-*")) == [packed]
    other = prepare_data(str(data), **(how | {"options": {"val_every": 2}}))
    assert "MB" in said[1]
    assert said[1].startswith(str(packed))
    assert other != packed


def test_train_from_a_run_begins_with_its_weights_and_says_so(pack: Path, tmp_path: Path) -> None:
    averaged = "optimiser.ema_decay=0.9"
    quietly(tiny_settings("seed=1", averaged), pack=pack, run=tmp_path / "first")
    hardly = tiny_settings("optimiser.iterations=1", "optimiser.learning_rates=[1e-12]", averaged)
    said: list[str] = []
    quietly(hardly, pack=pack, run=tmp_path / "second", start=tmp_path / "first", say=said.append)
    assert "starting from the weights of first, iteration 12" in said
    given = load_trained(tmp_path / "first").model.state_dict()  # the averaged ones
    begun = load_checkpoint(tmp_path / "second" / "checkpoints" / "step-00000001")
    for group in ("model", "averaged"):
        for name, tensor in begun.tensors[group].items():
            torch.testing.assert_close(tensor, given[name], rtol=0, atol=1e-9)

    longer = tiny_settings("optimiser.iterations=2", "optimiser.learning_rates=[1e-12]", averaged)
    quietly(longer, pack=pack, run=tmp_path / "second", start=tmp_path / "first", resume=True, say=said.append)
    assert "resuming from" in said[-2]
    quietly(longer, pack=pack, run=tmp_path / "second", resume=True)
    about = parse_json((tmp_path / "second" / "run.json").read_bytes(), name="run.json")
    assert about["started_from"] == {"name": "first", "iteration": 12}


def test_train_from_a_run_with_other_classes_keeps_what_does_not_depend_on_them(pack: Path, tmp_path: Path) -> None:
    quietly(tiny_settings("optimiser.iterations=1"), pack=pack, run=tmp_path / "lesions")
    hardly = tiny_settings("optimiser.iterations=1", "optimiser.learning_rates=[1e-12]")
    said: list[str] = []
    how: dict[str, Any] = {"start": tmp_path / "lesions", "say": said.append}
    quietly(hardly, pack="synthetic:neurites", run=tmp_path / "neurites", **how)
    (line,) = (line for line in said if line.startswith("starting from"))
    anew = set(line.partition("differ: ")[2].split(", "))
    given, begun = (load_trained(tmp_path / name).model.state_dict() for name in ("lesions", "neurites"))
    same = {name for name in given if given[name].shape == begun[name].shape}
    assert anew == given.keys() - same
    assert {name.split(".")[0] for name in anew} == {"logits", "posterior"}
    for name in same:
        torch.testing.assert_close(begun[name], given[name], rtol=0, atol=1e-9)


def test_train_from_another_network_says_how_to_have_it_before_anything_is_packed(pack: Path, tmp_path: Path) -> None:
    wide = tiny_settings("optimiser.iterations=1", "model.channels=[4,8]", "model.blocks_per_scale=2")
    quietly(wide, pack=pack, run=tmp_path / "wide")
    words = r"wide: has a different network.* --set 'model.channels=\[4, 8\]' --set model.blocks_per_scale=2"
    with pytest.raises(ConfigError, match=words):
        quietly(tiny_settings(), pack=tmp_path / "nowhere", run=tmp_path / "run", start=tmp_path / "wide")
    publish(load_trained(tmp_path / "wide"), out=tmp_path / "some", name="some", posterior=False)
    with pytest.raises(CheckpointError, match="are for sampling only"):
        quietly(wide, pack=pack, run=tmp_path / "run", start=tmp_path / "some")


def test_resume_refuses_a_checkpoint_that_is_no_run(pack: Path, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "checkpoints", step=3, tensors={"model": {}}, state={"best": 1})
    with pytest.raises(CheckpointError, match=r"settings.* missing"):
        quietly(tiny_settings(), pack=pack, run=tmp_path, resume=True)


def test_resume_may_end_otherwise_than_was_planned(pack: Path, tmp_path: Path) -> None:
    begun = tiny_settings("optimiser.iterations=6", "optimiser.learning_rates=[1e-3]")
    quietly(begun, pack=pack, run=tmp_path / "run")
    ending = (
        "optimiser.learning_rates=[1e-3, 1e-4]",
        "optimiser.boundaries=[8]",
        "augmentation.fade=[6, 9]",
        "objective.energy=5.0",
        "objective.energy_start=7",
        "model.orientations=4",
    )
    quietly(tiny_settings(*ending), pack=pack, run=tmp_path / "run", resume=True)
    quietly(tiny_settings(*ending), pack=pack, run=tmp_path / "whole")
    assert log_of(tmp_path / "run", "loss") == log_of(tmp_path / "whole", "loss")
    lines = [line for line in read_log(tmp_path / "run" / LOG_FILE) if "loss" in line]
    assert [line["step"] for line in lines if "energy" in line] == [8, 9, 10, 11, 12]
    with pytest.raises(
        CheckpointError, match=r"different settings \(objective.energy, objective.energy_background, "
    ):
        quietly(tiny_settings(*ending[:3]), pack=pack, run=tmp_path / "run", resume=True)


def test_train_has_an_energy_distance_of_instances_unless_ids_are_given(tmp_path: Path) -> None:
    options = ("data.options.num_images=4", "data.options.size=16", "objective.energy=1.0")
    train(tiny_settings(*options), data="synthetic:neurites", run=tmp_path / "run", device=CPU)
    assert sum("energy" in line for line in read_log(tmp_path / "run" / LOG_FILE)) == 12
    with pytest.raises(ConfigError, match=r"^objective\.energy: with instances not for data\.extrapolate"):
        quietly(tiny_settings(*options, "data.extrapolate=true"), pack="synthetic:neurites", run=tmp_path / "other")


def test_resume_may_go_on_for_longer_and_a_finished_run_says_so(pack: Path, tmp_path: Path) -> None:
    quietly(tiny_settings("optimiser.iterations=7"), pack=pack, run=tmp_path / "run")
    said: list[str] = []
    options: dict[str, Any] = {"pack": pack, "run": tmp_path / "run", "resume": True, "say": said.append}
    assert quietly(tiny_settings("optimiser.iterations=7"), **options) == {}
    assert said[-1].endswith("all 7 iterations are done")
    quietly(tiny_settings("optimiser.iterations=12"), **options)
    assert log_of(tmp_path / "run", "loss") == log_of(finished(tmp_path / "whole", pack), "loss")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_train_saves_and_stops_when_asked_to(number: int, pack: Path, tmp_path: Path) -> None:
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]

    def ask_at_seven(step: int, _numbers: dict[str, float]) -> None:
        if step == 7:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted) as caught:
        quietly(tiny_settings(), pack=pack, run=tmp_path, watch=ask_at_seven)
    assert (caught.value.signal_number, caught.value.step) == (number, 7)
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == handlers
    found = latest_checkpoint(tmp_path / "checkpoints")
    assert found is not None
    assert found.step == 7


def test_second_interrupt_is_the_usual_one_and_a_second_sigterm_is_not() -> None:
    before, said = signal.getsignal(signal.SIGINT), list[str]()
    with stop_on_signals(said.append) as stop:
        assert stop.asked() is None
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked() == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked() == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert said == ["stopping after this iteration"]


def test_slow_steps_are_shown_before_they_are_logged(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, set[str]]] = []
    monkeypatch.setattr("hpunet.training.loop.SHOW_EVERY_SECONDS", 0)
    settings = tiny_settings("optimiser.iterations=4", "logging.log_every=3", "logging.validate_every=100")
    quietly(settings, pack=pack, run=tmp_path, watch=lambda step, numbers: seen.append((step, set(numbers))))
    assert seen[0] == (0, set())
    assert [step for step, names in seen if "its" in names] == [1, 2, 3, 4]
    assert [line["step"] for line in read_log(tmp_path / LOG_FILE) if "loss" in line] == [3, 4]


def test_a_log_file_gets_whole_lines_with_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny_settings("optimiser.iterations=20", "logging.log_every=10")
    numbers = {"its": 0.5, "rec": 0.25, "lambda": 1.5, "lr": 1e-4, **{f"kl_{i}": 123.456 for i in range(9)}}
    with TrainingProgress(settings, quiet=False) as line:
        line.update(0, {})
        line.update(9, numbers)  # not yet: it was shown less than a minute ago
        line.update(10, numbers)
        monkeypatch.setattr("hpunet.cli.progress.TRAINING_LOG_INTERVAL_S", 0)
        line.update(11, numbers)
    lines = capsys.readouterr().err.splitlines()
    assert [words.split(":")[0] for words in lines] == ["iteration 10 of 20, 0", "iteration 11 of 20, 0"]
    assert lines[0].startswith("iteration 10 of 20, 0:00:20 left: 0.5 it/s  rec 0.250")
    assert lines[0].endswith("lr 1.0e-04")


def test_best_is_never_nan(pack: Path, tmp_path: Path) -> None:
    val = open_pack(pack, split="val")
    model = untrained_model(val.info)
    validation = Validation(model, pack=val, settings=tiny_settings(), device=CPU, run=tmp_path)
    nan = float("nan")
    for value, than, better in [(nan, None, 0), (nan, 0.5, 0), (0.5, None, 1), (0.4, 0.5, 1), (0.6, 0.5, 0)]:
        assert validation.is_better({"ged2": value}, than=than) == bool(better)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "changes",
    [
        (),
        WITHOUT_GECO,
        ("optimiser.ema_decay=0.9", "optimiser.accumulation_steps=2"),
        ("objective.energy=5.0", "objective.energy_start=2"),
    ],
)
def test_graph_steps_equal_eager_steps(changes: tuple[str, ...], pack: Path, tmp_path: Path) -> None:
    states, losses = [], []
    for graph in ("false", "true"):
        settings = tiny_settings(*changes, "optimiser.iterations=5", f"optimiser.cuda_graph={graph}")
        training = Training(settings, pack_path=pack, run=tmp_path, device=torch.device("cuda", 0))
        losses.append([])
        for terms, norm in training.run_steps():
            training.step += 1
            losses[-1] += [float(terms.loss), float(norm)]
        states.append({f"{g} {n}": t.clone() for g, ts in training.state_tensors().items() for n, t in ts.items()})
        assert int(training.train_step.skipped) == 0
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    for name, eager in states[0].items():
        torch.testing.assert_close(states[1][name], eager, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.gpu
def test_graph_steps_go_on_after_a_resume(pack: Path, tmp_path: Path) -> None:
    device = torch.device("cuda", 0)
    settings = tiny_settings("optimiser.iterations=8", "optimiser.cuda_graph=true")
    shorter = tiny_settings("optimiser.iterations=4", "optimiser.cuda_graph=true")
    for run, stages in (("whole", [settings]), ("resumed", [shorter, settings])):
        for stage in stages:
            train(stage, data=str(pack), run=tmp_path / run, device=device, resume=True, say=lambda _line: None)
    assert log_of(tmp_path / "resumed", "loss") == pytest.approx(log_of(tmp_path / "whole", "loss"), rel=1e-4)


@pytest.mark.gpu
def test_graph_steps_skip_what_is_not_finite(pack: Path, tmp_path: Path) -> None:
    settings = tiny_settings("optimiser.iterations=3", "optimiser.cuda_graph=true", "optimiser.ema_decay=0.9")
    training = Training(settings, pack_path=pack, run=tmp_path, device=torch.device("cuda", 0))
    spoil = torch.zeros((), device="cuda")
    next(training.model.parameters()).register_hook(lambda gradient: gradient + spoil)
    before: dict[str, torch.Tensor] = {}
    for _ in training.run_steps():
        training.step += 1
        now = {f"{g} {n}": t.clone() for g, ts in training.state_tensors().items() for n, t in ts.items()}
        if training.step == 2:
            assert all(torch.equal(value, before[name]) for name, value in now.items())
        spoil.fill_(torch.nan if training.step == 1 else 0.0)
        before = now
    assert (int(training.train_step.skipped), int(training.train_step.skipped_in_a_row)) == (1, 0)


def test_train_on_a_pack_takes_over_its_options_and_refuses_others(tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    pack_data("synthetic:lesions", pack, options={"num_images": 12, "size": 16, "seed": 3})
    with pytest.raises(ConfigError, match=r"data.options.num_images: 6 is requested, .* was made with 12"):
        quietly(tiny_settings("data.options.num_images=6"), pack=pack, run=tmp_path / "no")
    assert not (tmp_path / "no").exists()
    quietly(tiny_settings("optimiser.iterations=1"), pack=pack, run=tmp_path / "run")
    saved = parse_json((tmp_path / "run/settings.json").read_bytes(), name="settings.json")
    assert saved["data"]["options"] == {"num_images": 12, "size": 16, "seed": 3}
    quietly(tiny_settings("optimiser.iterations=2"), pack=pack, run=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("crop", "channels", "advice"),
    [
        ("[8,8]", "[4,4,4,4,4]", "8x8 cannot be halved 4 times, .* take 1 off model.channels, or .* such as 16x16$"),
        ("[16,40]", "[4,4,4,4,4]", "take 1 off model.channels, or choose multiples of 16, such as 16x32 or 16x48$"),
        ("[15,16]", "[4,4,4]", "of model.channels ask; choose multiples of 4, such as 12x16 or 16x16$"),
    ],
)
def test_train_says_which_crops_are_possible_before_it_packs(
    crop: str, channels: str, advice: str, tmp_path: Path
) -> None:
    settings = tiny_settings(f"data.crop={crop}", f"model.channels={channels}")
    with pytest.raises(ConfigError, match=advice):
        train(settings, data="synthetic:lesions", run=tmp_path / "run", device=CPU)
    assert not (tmp_path / "run").exists()


def test_train_leaves_a_run_alone_that_another_process_writes(pack: Path, tmp_path: Path) -> None:
    settings = tiny_settings("optimiser.iterations=2", "logging.checkpoint_every=1")

    def second_writer(step: int, _numbers: dict[str, float]) -> None:
        if step == 1:
            with pytest.raises(ConfigError, match="in use"):
                quietly(settings, pack=pack, run=tmp_path, resume=True)

    quietly(settings, pack=pack, run=tmp_path, watch=second_writer)
    assert [line["step"] for line in read_log(tmp_path / LOG_FILE) if "loss" in line] == [1, 2]
    assert not list(tmp_path.rglob(".*"))
