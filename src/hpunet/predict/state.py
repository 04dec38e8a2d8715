"""A prediction's state: what makes its maps again from the same image and model, as a small JSON."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from hpunet.errors import ConfigError, DataError
from hpunet.predict.draw import SamplingOptions
from hpunet.utils.files import parse_json, read_file
from hpunet.weights.load import TrainedModel

if TYPE_CHECKING:
    from hpunet.predict.prediction import Prediction

MAX_STATE_BYTES = 2**28
_Count = Annotated[int, Field(ge=0, le=2**24)]


class Given(NamedTuple):
    """What decodes to the hypotheses of a slice."""

    latents: list[Tensor]
    orientation_ids: Tensor | None


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelRecord(_Strict):
    """The model that drew the hypotheses."""

    name: str
    iteration: int


class ImageRecord(_Strict):
    """A slice or volume as the model saw it; no name, which may be a patient's."""

    shape: list[_Count]
    sha256: str
    """Of its values, rounded to 16 bits, and of what is visible and its labels, for a model that extrapolates."""


class LatentRecord(_Strict):
    """The latents of a scale: the bytes of (z, s, channels, h_i, w_i) float32, little-endian.

    Of a model of volumes (1, s, channels, d_i, h_i, w_i).
    """

    shape: Annotated[list[_Count], Field(min_length=5, max_length=6)]
    base64: str

    def tensor(self, *, name: str) -> Tensor:
        """The values; a `DataError` if they are not as many as the shape says, or not finite."""
        try:
            content = base64.b64decode(self.base64, validate=True)
        except ValueError:
            raise DataError(f"{name}: not base64") from None
        if len(content) != 4 * int(np.prod(self.shape)):
            raise DataError(f"{name}: {len(content)} bytes do not fill the shape {self.shape}")
        values = np.frombuffer(content, dtype="<f4").astype(np.float32).reshape(self.shape)
        if not np.isfinite(values).all():
            raise DataError(f"{name}: has values that are NaN or infinite")
        return torch.from_numpy(values)


class State(_Strict):
    """The content of the file."""

    format: Literal["hpunet-map"] = "hpunet-map"
    version: Literal[1] = 1
    model: ModelRecord
    images: list[ImageRecord]
    """Of each slice, or of the volume."""
    axes: Literal["yx", "zyx"]
    slices: tuple[_Count, _Count] | None
    options: SamplingOptions
    orientation_ids: list[list[int]] | None
    """Of every slice (or the volume) and hypothesis."""
    latents: list[LatentRecord]

    def check_model(self, trained: TrainedModel) -> None:
        """Refuse another model."""
        if (self.model.name, self.model.iteration) != (trained.name, trained.step):
            drawn = f"{self.model.name} at iteration {self.model.iteration}"
            raise DataError(f"state: was drawn by {drawn}, not by {trained.name} at iteration {trained.step}")

    def given(self, numbers: Sequence[int]) -> dict[int, Given]:
        """The latents of each of these slices; those of a volume under the number of its first slice."""
        latents = [each.tensor(name=f"state: latents[{i}]") for i, each in enumerate(self.latents)]
        if any(each.ndim == 6 for each in latents):
            numbers = numbers[:1]
        expected = len(numbers), self.options.num_samples
        ids = self.orientation_ids
        if (
            len(self.images) != expected[0]
            or any(tuple(scale.shape[:2]) != expected for scale in latents)
            or (ids is not None and [len(row) for row in ids] != [expected[1]] * expected[0])
        ):
            raise DataError("state: expected latents of {} slices with {} hypotheses each".format(*expected))
        return {
            number: Given([s[i : i + 1] for s in latents], None if ids is None else torch.tensor(ids[i : i + 1]))
            for i, number in enumerate(numbers)
        }

    def check_image(self, part: "Prediction") -> None:
        """Refuse a slice of another image, or another volume."""
        first = self.slices[0] if self.slices and len(self.images) > 1 else part.place.offset[0]
        if _record(part) != self.images[part.place.offset[0] - first]:
            raise DataError(
                "state: was drawn from another image or visible part, or read with another window or spacing"
            )


def state_of(prediction: "Prediction", samples: Sequence[int] = ()) -> dict[str, Any]:
    """See `Prediction.state`."""
    parts, place, ids = prediction.parts, prediction.place, prediction.orientation_ids
    chosen, first = list(samples or range(len(prediction.samples))), place.offset[0]
    options = asdict(prediction.options) | {"num_samples": len(chosen)}
    return State(
        model=ModelRecord(name=prediction.origin.run, iteration=prediction.origin.iteration),
        images=[_record(part) for part in parts],
        axes="yx" if prediction.axes == "yx" else "zyx",
        slices=(first, first + _depth(prediction)) if place.geometry.axes == "zyx" else None,
        options=SamplingOptions(**options | {"region": prediction.options.region}),
        orientation_ids=None if ids is None else ids[:, chosen].tolist(),
        latents=[_latents(scale[:, chosen]) for scale in prediction.latents],
    ).model_dump(mode="json")


def _depth(prediction: "Prediction") -> int:
    return len(prediction.mean) if prediction.axes == "zyx" else 1


def read_state(given: str | Path | Mapping[str, Any]) -> State:
    """A state from what `Prediction.state` gave, or from a JSON file of it."""
    content, name = given, "state"
    if not isinstance(given, Mapping):
        name = str(given)
        content = parse_json(read_file(Path(given), max_bytes=MAX_STATE_BYTES, error=DataError), name=name)
    try:
        return State.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])[:80]
        raise DataError(f"{name}: not a state of hpunet ({where}: {first['msg']})") from None
    except ConfigError as error:
        raise DataError(f"{name}: {error}") from None


def _latents(scale: Tensor) -> LatentRecord:
    values = scale.detach().cpu().to(torch.float32).contiguous().numpy()
    return LatentRecord(shape=list(values.shape), base64=base64.b64encode(values.astype("<f4").tobytes()).decode())


def _record(part: "Prediction") -> ImageRecord:
    values = np.rint(np.clip(part.image, 0, 1) * 65535).astype("<u2")
    content = values.tobytes() + (b"" if part.cond is None else np.packbits(part.cond > 0).tobytes())
    return ImageRecord(shape=list(values.shape), sha256=hashlib.sha256(content).hexdigest())
