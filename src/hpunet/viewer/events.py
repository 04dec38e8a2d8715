"""What a person does to a case, as events, and the state that they add up to; the page folds them in the same way."""

import json
from bisect import bisect_left
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import UInt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter

from hpunet.errors import HPUNetError

MAX_EVENTS, MAX_RUNS = 1000, 200_000  # of a batch
MAX_STATE_BYTES = 2**20
_Index = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
_Value = Annotated[int, Field(strict=True, ge=0, lt=2**16)]
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class EventError(HPUNetError):
    """An event that cannot happen now."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _small(state: dict[str, Any]) -> dict[str, Any]:
    if len(json.dumps(state)) > MAX_STATE_BYTES:
        raise ValueError(f"more than {MAX_STATE_BYTES} bytes")
    return state


MapState = Annotated[dict[str, Any], AfterValidator(_small)]
"""What `Prediction.state` gives; read where it is used, since that needs torch."""


class ChosenFrom(_Strict):
    """The hypothesis that was chosen, and how it was drawn; `state` is that after its edits."""

    hypothesis: _Index
    share: Annotated[float, Field(strict=True, ge=0, le=1)]
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**32)]
    num_samples: Annotated[int, Field(strict=True, ge=1, le=64)]
    at: Annotated[list[_Number], Field(min_length=2, max_length=2)] | None = None
    state: MapState | None = None
    num_edits: Annotated[int, Field(strict=True, ge=0, lt=2**31)] = 0


class Choose(_Strict):
    """The mask of a slice becomes exactly this map: runs of start, length and value."""

    kind: Literal["choose"]
    slice: _Index
    value_map: Annotated[list[tuple[_Index, _Index, _Value]], Field(max_length=MAX_RUNS)]
    source: ChosenFrom


class ChooseVolume(_Strict):
    """The masks of all slices become exactly this map: runs of start, length and value, none of two slices."""

    kind: Literal["choose-volume"]
    value_map: Annotated[list[tuple[_Index, _Index, _Value]], Field(max_length=MAX_RUNS)]
    source: ChosenFrom

    def runs_of(self, number: int, num_pixels: int) -> list[tuple[int, int, int]]:
        """The runs of a slice, as they lie in it."""
        first = number * num_pixels
        start, end = (bisect_left(self.value_map, (place, 0, 0)) for place in (first, first + num_pixels))
        return [(begin - first, length, value) for begin, length, value in self.value_map[start:end]]


class Paint(_Strict):
    """These pixels, runs of start and length in row-major order, get a value; 0 erases."""

    kind: Literal["paint"]
    slice: _Index
    value: _Value
    runs: Annotated[list[tuple[_Index, _Index]], Field(min_length=1, max_length=MAX_RUNS)]


class Relabel(_Strict):
    """These pixels, runs of start, length and value, get their values; 0 erases."""

    kind: Literal["relabel"]
    slice: _Index
    value_map: Annotated[list[tuple[_Index, _Index, _Value]], Field(min_length=1, max_length=MAX_RUNS)]


class Clear(_Strict):
    """The mask of a slice becomes empty: nothing is marked."""

    kind: Literal["clear"]
    slice: _Index


class Simple(_Strict):
    """Takes the last step back or makes it again; decides, or takes the decision back."""

    kind: Literal["undo", "redo", "accept", "reopen"]


class Note(_Strict):
    """The text that replaces the note of the case."""

    kind: Literal["note"]
    text: Annotated[str, Field(max_length=10_000)]


Event = Annotated[Choose | ChooseVolume | Paint | Relabel | Clear | Simple | Note, Field(discriminator="kind")]
EVENTS: TypeAdapter[list[Any]] = TypeAdapter(Annotated[list[Event], Field(max_length=MAX_EVENTS)])
Step = Choose | ChooseVolume | Paint | Relabel | Clear


class Fold:
    """The state that the events of one case add up to."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.done = 0
        """Steps that are not undone; those after it can be done again."""
        self.status: Literal["open", "accepted"] = "open"
        self.note = ""
        self.version = 0
        self.sizes: dict[int, Any] = {}
        """What was measured of the masks of slices; forgotten when they change."""

    def apply(self, event: Any) -> None:
        """Add one event; an `EventError` if it cannot happen now."""
        if self.status == "accepted" and event.kind not in ("note", "reopen"):
            raise EventError(f"{event.kind}: the case is accepted; reopen it first")
        match event:
            case Choose() | ChooseVolume() | Paint() | Relabel() | Clear():
                self.steps[self.done :] = [event]
                self._move(+1)
            case Note():
                self.note = event.text
            case Simple(kind="undo"):
                if self.done == 0:
                    raise EventError("undo: there is nothing to undo")
                self._move(-1)
            case Simple(kind="redo"):
                if self.done == len(self.steps):
                    raise EventError("redo: there is nothing to do again")
                self._move(+1)
            case Simple(kind="accept"):
                if self.done == 0:
                    raise EventError("accept: choose a hypothesis, paint, or clear to say that nothing is there")
                self.status = "accepted"
            case _:
                if self.status == "open":
                    raise EventError("reopen: the case is open")
                self.status = "open"
        self.version += 1

    def _move(self, by: int) -> None:
        step = self.steps[min(self.done, self.done + by)]
        if isinstance(step, ChooseVolume):
            self.sizes.clear()
        else:
            self.sizes.pop(step.slice, None)
        self.done += by

    def copy(self) -> "Fold":
        """A fold to try events on."""
        other = Fold()
        other.__dict__ |= self.__dict__ | {"steps": list(self.steps), "sizes": dict(self.sizes)}
        return other

    def slices(self, *, num_pixels: int) -> list[int]:
        """The slices that steps concern, in order; of a map of the whole volume, those where it marks something."""
        found: set[int] = set()
        for step in self.steps[: self.done]:
            if isinstance(step, ChooseVolume):
                found |= {start // num_pixels for start, _, _ in step.value_map}
            else:
                found.add(step.slice)
        return sorted(found)

    def steps_of(self, number: int) -> list[Step]:
        """The steps that make the mask of a slice: from its last map on, or from its first stroke."""
        done = self.steps[: self.done]
        steps = [step for step in done if isinstance(step, ChooseVolume) or step.slice == number]
        last = max((i for i, step in enumerate(steps) if isinstance(step, Choose | ChooseVolume | Clear)), default=0)
        return steps[last:]

    def mask(self, number: int, *, shape: tuple[int, int]) -> UInt[np.ndarray, "h w"]:
        """The mask of a slice; of 8 bits, or 16 if there are more than 255 instances."""
        flat = np.zeros(shape[0] * shape[1], dtype=np.uint16)
        for step in self.steps_of(number):
            match step:
                case Choose() | ChooseVolume() | Relabel():
                    if not isinstance(step, Relabel):
                        flat[:] = 0
                    runs = step.runs_of(number, flat.size) if isinstance(step, ChooseVolume) else step.value_map
                    for start, length, value in runs:
                        flat[start : start + length] = value
                case Paint():
                    for start, length in step.runs:
                        flat[start : start + length] = step.value
                case Clear():
                    flat[:] = 0
        return flat.astype(np.min_scalar_type(int(flat.max(initial=0)))).reshape(shape)


def check_events(events: Sequence[Any], *, shape: Sequence[int], num_values: int) -> None:
    """Refuse events with slices, pixels or values that this image (z, h, w) and model do not have.

    There are as many values as classes, or, where they are ids of instances, as many as a map can hold.
    """
    num_pixels, total = shape[1] * shape[2], 0
    for event in events:
        if not isinstance(event, Step):
            continue
        if isinstance(event, ChooseVolume):
            limit = shape[0] * num_pixels
        elif event.slice < shape[0]:
            limit = num_pixels
        else:
            raise EventError(f"slice: expected below {shape[0]}, got {event.slice}")
        runs = [] if isinstance(event, Clear) else event.runs if isinstance(event, Paint) else event.value_map
        total += len(runs)
        end = 0
        for start, length, *_ in runs:
            if length < 1 or start < end or start + length > limit:
                raise EventError("runs: expected ascending, not overlapping runs of at least a pixel in the image")
            end = start + length
            if start // num_pixels != (end - 1) // num_pixels:
                raise EventError("value_map: expected runs that end where their slice ends")
        values = {run[2] for run in event.value_map} if isinstance(event, Choose | ChooseVolume | Relabel) else set()
        if isinstance(event, Choose | ChooseVolume) and 0 in values:
            raise EventError("value_map: expected runs of marked pixels, got one of value 0")
        values |= {event.value} if isinstance(event, Paint) else set()
        if max(values, default=0) >= num_values:
            raise EventError(f"value: expected 0 to {num_values - 1}, got {max(values)}")
    if total > MAX_RUNS:
        raise EventError(f"runs: expected at most {MAX_RUNS} in a batch, got {total}")
