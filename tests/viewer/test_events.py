"""What events add up to, and which ones are refused."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from hpunet.viewer.events import EVENTS, EventError, Fold, check_events

SHAPE = (2, 3, 4)
SOURCE = {"hypothesis": 0, "share": 0.5, "seed": 1, "num_samples": 16, "at": None}


def choose(*runs: tuple[int, int, int], z: int = 0) -> dict[str, Any]:
    return {"kind": "choose", "slice": z, "value_map": [list(run) for run in runs], "source": SOURCE}


def paint(value: int, *runs: tuple[int, int], z: int = 0) -> dict[str, Any]:
    return {"kind": "paint", "slice": z, "value": value, "runs": [list(run) for run in runs]}


def folded(*events: dict[str, Any]) -> Fold:
    fold = Fold()
    for event in EVENTS.validate_python(list(events)):
        fold.apply(event)
    return fold


def mask(fold: Fold, z: int = 0) -> list[int]:
    return fold.mask(z, shape=SHAPE[1:]).ravel().tolist()


def test_masks_are_what_the_steps_say() -> None:
    fold = folded(choose((1, 2, 1), (5, 1, 2)), paint(1, (0, 1), (11, 1)), paint(0, (2, 1)), paint(1, (3, 2), z=1))
    assert mask(fold) == [1, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 1]
    assert mask(fold, 1) == [0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    fold.apply(EVENTS.validate_python([choose((7, 1, 1))])[0])
    assert mask(fold) == [0] * 7 + [1] + [0] * 4
    fold.apply(EVENTS.validate_python([{"kind": "clear", "slice": 0}])[0])
    assert not any(mask(fold))
    assert fold.slices(num_pixels=4) == [0, 1]
    assert fold.version == 6


def test_undo_and_redo_over_all_steps_until_a_new_step() -> None:
    undo, redo = {"kind": "undo"}, {"kind": "redo"}
    steps = [choose((0, 2, 1)), paint(1, (4, 1)), {"kind": "clear", "slice": 0}, paint(1, (9, 1))]
    states = [mask(folded(*steps[:count])) for count in range(5)]
    for count in range(5):
        assert mask(folded(*steps, *count * [undo])) == states[4 - count]
        for again in range(count):
            assert mask(folded(*steps, *count * [undo], *again * [redo])) == states[4 - count + again]
    fold = folded(*steps, undo, undo, paint(2, (3, 1)))
    assert (fold.done, len(fold.steps)) == (3, 3)
    assert mask(fold) == [1, 1, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0]
    assert folded(*steps, *4 * [undo]).slices(num_pixels=4) == []


def test_relabelling_is_one_step_of_several_values() -> None:
    split = {"kind": "relabel", "slice": 0, "value_map": [[1, 1, 3], [2, 1, 300], [5, 1, 0]]}
    fold = folded(choose((0, 4, 1), (5, 1, 2)), split)
    assert mask(fold) == [1, 3, 300, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    assert fold.mask(0, shape=SHAPE[1:]).dtype == np.uint16
    fold.apply(EVENTS.validate_python([paint(3, (11, 1))])[0])
    fold.apply(EVENTS.validate_python([{"kind": "undo"}])[0])
    fold.apply(EVENTS.validate_python([{"kind": "undo"}])[0])
    assert mask(fold) == [1, 1, 1, 1, 0, 2, 0, 0, 0, 0, 0, 0]
    assert fold.mask(0, shape=SHAPE[1:]).dtype == np.uint8
    check_events(fold.steps, shape=SHAPE, num_values=301)
    with pytest.raises(EventError, match="300"):
        check_events(fold.steps, shape=SHAPE, num_values=300)


def test_a_random_history_equals_a_slow_twin() -> None:
    random = np.random.default_rng(0)
    for _ in range(100):
        fold, masks, place = Fold(), [np.zeros(12, dtype=int)], 0
        for _ in range(30):
            what = random.integers(5)
            now = masks[place].copy()
            start, length, value = int(random.integers(10)), int(random.integers(1, 3)), int(random.integers(1, 3))
            event: dict[str, Any] = {"kind": "clear", "slice": 0}
            if what == 0 and place:
                event, place = {"kind": "undo"}, place - 1
            elif what == 1 and place < len(masks) - 1:
                event, place = {"kind": "redo"}, place + 1
            else:
                if what == 2:
                    event, now = choose((start, length, value)), np.zeros(12, dtype=int)
                    now[start : start + length] = value
                elif what == 3:
                    event = paint(value - 1, (start, length))
                    now[start : start + length] = value - 1
                else:
                    now[:] = 0
                masks[place + 1 :] = [now]
                place += 1
            fold.apply(EVENTS.validate_python([event])[0])
            assert mask(fold) == masks[place].tolist()
            assert (fold.done, len(fold.steps)) == (place, len(masks) - 1)


@pytest.mark.parametrize(
    ("before", "event", "word"),
    [
        ([], {"kind": "undo"}, "undo"),
        ([], {"kind": "redo"}, "again"),
        ([], {"kind": "accept"}, "choose"),
        ([paint(1, (0, 1)), {"kind": "undo"}], {"kind": "accept"}, "choose"),
        ([], {"kind": "reopen"}, "open"),
        ([paint(1, (0, 1)), {"kind": "accept"}], {"kind": "accept"}, "accepted"),
        ([paint(1, (0, 1)), {"kind": "accept"}], {"kind": "undo"}, "accepted"),
        ([paint(1, (0, 1)), {"kind": "accept"}], paint(1, (0, 1)), "accepted"),
    ],
)
def test_events_that_cannot_happen_now_are_refused(before: list[Any], event: dict[str, Any], word: str) -> None:
    fold = folded(*before)
    with pytest.raises(EventError, match=word):
        fold.apply(EVENTS.validate_python([event])[0])
    assert fold.version == len(before)


def test_an_accepted_case_takes_notes_and_can_be_reopened() -> None:
    fold = folded(paint(1, (0, 1)), {"kind": "accept"}, {"kind": "note", "text": "seen"})
    assert (fold.status, fold.note) == ("accepted", "seen")
    fold.apply(EVENTS.validate_python([{"kind": "reopen"}])[0])
    assert fold.status == "open"


@pytest.mark.parametrize(
    "event",
    [
        paint(1, (0, 1), z=2),
        paint(1, (12, 1)),
        paint(1, (11, 2)),
        paint(1, (0, 0)),
        paint(1, (3, 2), (4, 1)),
        paint(1, (3, 1), (0, 1)),
        paint(3, (0, 1)),
        choose((0, 1, 0)),
        choose((0, 1, 3)),
        choose((5, 8, 1)),
        {"kind": "relabel", "slice": 0, "value_map": [[0, 1, 3]]},
        {"kind": "relabel", "slice": 0, "value_map": [[3, 2, 1], [4, 1, 1]]},
    ],
)
def test_events_that_do_not_fit_the_image_or_model_are_refused(event: dict[str, Any]) -> None:
    with pytest.raises(EventError):
        check_events(EVENTS.validate_python([event]), shape=SHAPE, num_values=3)


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "explode"},
        {"kind": "undo", "more": 1},
        {"kind": "paint", "slice": 0, "value": 1, "runs": []},
        {"kind": "paint", "slice": 0, "value": 1, "runs": [[0, 1, 2]]},
        {"kind": "paint", "slice": 0, "value": 1, "runs": [["0", 1]]},
        {"kind": "paint", "slice": 0, "value": True, "runs": [[0, 1]]},
        {"kind": "paint", "slice": -1, "value": 1, "runs": [[0, 1]]},
        {"kind": "paint", "slice": 0, "value": 65536, "runs": [[0, 1]]},
        {"kind": "relabel", "slice": 0, "value_map": []},
        {"kind": "note", "text": "x" * 10_001},
        {"kind": "note", "text": "\ud800"},
        {"kind": "choose", "slice": 0, "value_map": [], "source": SOURCE | {"share": float("nan")}},
        {"kind": "choose", "slice": 0, "value_map": []},
    ],
)
def test_malformed_events_are_refused(event: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        EVENTS.validate_python([event])
