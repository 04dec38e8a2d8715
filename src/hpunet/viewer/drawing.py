"""Draws hypotheses for the page: one thread owns the model and takes one job after the other."""

import queue
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import UInt8, UInt16

from hpunet.data.io.inputs import Stored
from hpunet.data.io.windows import Window
from hpunet.errors import DataError, HPUNetError
from hpunet.viewer.answers import answer_of, latent_grid, measured, runs_of
from hpunet.viewer.bounded import Bounded
from hpunet.viewer.cases import Case
from hpunet.viewer.edits import Combine, EditWanted, Hypothesis, Sample, ScaleMapWanted, edited, scale_map
from hpunet.viewer.instances import count_instances, instances_in
from hpunet.viewer.volumes import VOLUME_BYTES, DrawnVolume, VolumeWish, draw_volume

if TYPE_CHECKING:  # torch is imported by the thread, while the page is loading
    from hpunet.predict.open_image import OpenedImage
    from hpunet.predict.prediction import Prediction
    from hpunet.predict.predictor import Predictor
    from hpunet.predict.state import State
    from hpunet.sampling.orientations import Features

OPENED_BYTES, FEATURE_BYTES, PREDICTION_BYTES = 2**30, 2**28, 2**26
MAX_WAITING = 256
_MAX_SAMPLE_BYTES = 2**28  # of one prediction


class CancelledError(Exception):
    """Nobody waits for the result any more."""


class BusyError(HPUNetError):
    """Too many jobs wait."""


@dataclass(frozen=True)
class Wish:
    """What to draw: equal wishes give equal samples."""

    case: str
    number: int
    """Of the slice."""
    num_samples: int = 16
    seed: int = 0
    at: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class Drawn:
    """Samples of one slice, or of the part of it around a point, as the page gets them."""

    name: str
    samples: UInt8[np.ndarray, "s h w"]
    mean: UInt8[np.ndarray, "h w"]
    std: UInt8[np.ndarray, "h w"]
    """255 is the largest possible value, 0.5."""
    instances: UInt16[np.ndarray, "h w"] | None
    """Samples of a model of instances, clustered."""
    answer: dict[str, Any]

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        maps = (self.samples, self.mean, self.std, self.instances)
        return sum(each.nbytes for each in maps if each is not None)


class Job:
    """A result to come, which may be cancelled: at once, or between two chunks of samples."""

    def __init__(self, work: Callable[["Job"], Any]) -> None:
        self.work, self.future, self.stop = work, Future[Any](), threading.Event()
        self.num_done = 0
        """Samples of slices so far."""

    def cancel(self) -> None:
        """Nobody waits any more."""
        self.stop.set()
        self.future.cancel()

    def advance(self, num_samples: int = 0) -> None:
        """Raise a `CancelledError` if nobody waits any more."""
        self.num_done += num_samples
        if self.stop.is_set():
            raise CancelledError


class Drawing:
    """The model, its thread, and what it remembers; `load` gives the model."""

    def __init__(self, load: Callable[[], "Predictor"], *, window: Window | None = None) -> None:
        self._load, self._window = load, window
        self._opened: Bounded[OpenedImage] = Bounded(OPENED_BYTES)
        self._features: Bounded[Features] = Bounded(FEATURE_BYTES)
        self._drawn: Bounded[Drawn] = Bounded(PREDICTION_BYTES)
        self._volumes: Bounded[DrawnVolume] = Bounded(VOLUME_BYTES)
        self._bases: Bounded[Prediction] = Bounded(FEATURE_BYTES)
        self._scale_maps: Bounded[tuple[np.ndarray, float]] = Bounded(PREDICTION_BYTES // 8)
        self._names: dict[Wish, str] = {}
        self._session = secrets.token_hex(6)  # names never repeat, also not after a restart
        self._count = 0
        self.predictor: Future[Predictor] = Future()
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._current: Job | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hpunet-model", daemon=True)

    def start(self) -> None:
        """Load the model and wait for jobs."""
        self._thread.start()

    def close(self, *, timeout: float) -> bool:
        """Stop after the current chunk of samples; whether the thread has ended in time."""
        self._closed.set()
        if (current := self._current) is not None:
            current.cancel()
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def draw(self, wish: Wish, case: Case, read: Callable[[Case], Stored]) -> Job:
        """Draw samples; `read` gives the stored values of the case."""
        return self._put(lambda job: self._draw(wish, case, read, job))

    def draw_volume(self, wish: VolumeWish, case: Case, read: Callable[[Case], Stored]) -> Job:
        """Draw samples of a whole volume."""
        return self._put(lambda job: self._draw_volume(wish, case, read, job))

    def edit(self, case: Case, read: Callable[[Case], Stored], wanted: EditWanted) -> Job:
        """Edit a hypothesis; the result is an answer for the page."""
        return self._put(lambda job: self._edit(case, read, wanted, job))

    def scale_map(self, case: Case, read: Callable[[Case], Stored], wanted: ScaleMapWanted) -> Job:
        """A map of a scale, and the number that 255 stands for."""

        def work(job: Job) -> Any:
            key = case.name, wanted.model_dump_json()
            make = lambda: scale_map(self._base(case, read, wanted, wanted.start, job), wanted)  # noqa: E731
            return self._scale_maps.get_or(key, make, lambda found: found[0].nbytes)

        return self._put(work)

    def _put(self, work: Callable[[Job], Any]) -> Job:
        if self._queue.qsize() >= MAX_WAITING:
            raise BusyError("too many requests wait for the model; try again later")
        job = Job(work)
        self._queue.put(job)
        return job

    def draw_ahead(self, case: Case, read: Callable[[Case], Stored]) -> Job:
        """Draw what the page asks for first, unless it asks for a point in a large image."""

        def work(job: Job) -> None:
            from hpunet.data.field_of_view import is_larger
            from hpunet.evaluation.scores import default_num_samples

            predictor = self.predictor.result()
            num_samples = default_num_samples(predictor.info)
            if predictor.model.ndim == 3:
                self._draw_volume(VolumeWish(case.name, num_samples), case, read, job)
            elif not is_larger(read(case).values.shape[1:3], info=predictor.info):
                self._draw(Wish(case.name, 0, num_samples), case, read, job)

        return self._put(work)

    def found(self, name: str) -> Drawn | None:
        """The prediction of this name, if it is still there."""
        return self._drawn.get(name)

    def found_volume(self, name: str) -> DrawnVolume | None:
        """The prediction of a volume of this name, if it is still there."""
        return self._volumes.get(name)

    @property
    def num_done(self) -> int:
        """How many samples of slices the job that runs now has drawn."""
        current = self._current
        return 0 if current is None else current.num_done

    def _run(self) -> None:
        self.predictor.set_running_or_notify_cancel()  # so that nobody who waits for it can cancel it
        try:
            loaded = self._load()
            self._warm_up(loaded)
        except BaseException as error:
            self.predictor.set_exception(error)
        else:
            self.predictor.set_result(loaded)
        while (job := self._queue.get()) is not None and not self._closed.is_set():
            if not job.future.set_running_or_notify_cancel():
                continue
            self._current = job
            try:
                job.future.set_result(job.work(job))
            except BaseException as error:
                job.future.set_exception(error)
            finally:
                self._current = None

    def _warm_up(self, predictor: "Predictor") -> None:
        """The first call of a network is the slowest."""
        info, crop = predictor.info, predictor.settings.data.crop
        if predictor.model.ndim == 3:
            return
        h, w = info.image_size or (crop[0], crop[1])
        if h * w <= 2**16:
            values = np.zeros((1, h, w, info.in_channels), dtype=np.float32)
            from hpunet.predict.draw import SamplingOptions
            from hpunet.predict.open_image import OpenedImage
            from hpunet.predict.place import Place

            source = OpenedImage("warm-up", values.transpose(0, 3, 1, 2), Place((1, h, w)))
            list(predictor.each_slice(source, options=SamplingOptions(num_samples=1)))

    def _draw(self, wish: Wish, case: Case, read: Callable[[Case], Stored], job: Job) -> Drawn:
        name = self._names.get(wish)
        if name is not None and (known := self._drawn.get(name)) is not None:
            return known
        start = time.perf_counter()
        prediction = self._predict(wish, case, read, job)
        job.advance()
        instances = instances_in(prediction.samples, info=prediction.info, seed=wish.seed)
        answer = answer_of(prediction, seed=wish.seed) | {
            "num_instances": None if instances is None else count_instances(instances),
            "seconds": round(time.perf_counter() - start, 3),
        }
        drawn = self._named(prediction, instances, answer)
        self._drawn.put(drawn.name, drawn, drawn.nbytes)
        self._names = {wish: name for wish, name in self._names.items() if name in self._drawn}
        self._names[wish] = drawn.name
        return drawn

    def _draw_volume(self, wish: VolumeWish, case: Case, read: Callable[[Case], Stored], job: Job) -> DrawnVolume:
        name = next((name for name, known in self._volumes.items() if known.wish == wish), None)
        if name is not None and (found := self._volumes.get(name)) is not None:
            return found
        from hpunet.predict.crop import Region
        from hpunet.predict.draw import SamplingOptions

        predictor = self.predictor.result()
        how: dict[str, Any] = {"num_samples": wish.num_samples, "seed": wish.seed, "window": self._window}
        options = SamplingOptions(**how, region=Region(at=wish.at))
        source = self._open(predictor, wish, case, read, options)
        drawn = draw_volume(predictor, source, wish, options, name=self._new_name("v"), advance=job.advance)
        return self._volumes.put(drawn.name, drawn, drawn.nbytes)

    def _predict(
        self, wish: Wish, case: Case, read: Callable[[Case], Stored], job: Job, *, state: "State | None" = None
    ) -> "Prediction":
        """The samples of the wish, or those of a state instead, which remember what the encoder gave."""
        from hpunet.predict.crop import Region
        from hpunet.predict.draw import SamplingOptions

        predictor = self.predictor.result()
        if predictor.model.ndim == 3:
            raise DataError("the model draws whole volumes, no slices; its latents are not edited here")
        sampling: dict[str, Any] = {"num_samples": wish.num_samples, "seed": wish.seed, "window": self._window}
        options = SamplingOptions(**sampling, region=Region(at=wish.at))
        if state is not None:
            options = replace(options, num_samples=1, seed=state.options.seed, temperature=state.options.temperature)
        source = self._open(predictor, wish, case, read, options)
        if options.num_samples * source.images[0, 0].size > _MAX_SAMPLE_BYTES:
            most = max(1, _MAX_SAMPLE_BYTES // source.images[0, 0].size)
            raise DataError(f"num_samples: expected at most {most} of an image this large; or cut a part of it out")
        job.advance()
        how: dict[str, Any] = {"numbers": [wish.number], "features": self._encode(predictor, wish, source)}
        if state is not None:
            state.check_model(predictor.trained)
            how["given"] = state.given([wish.number])
        (prediction,) = predictor.each_slice(source, options=options, **how, advance=job.advance)
        if state is not None:
            state.check_image(prediction)
        return prediction

    def _base(
        self,
        case: Case,
        read: Callable[[Case], Stored],
        wanted: EditWanted | ScaleMapWanted,
        start: Hypothesis,
        job: Job,
    ) -> "Prediction":
        """The one hypothesis that is edited; the latest ones are remembered, since dragging asks for one again."""
        from hpunet.predict.state import read_state

        drawn = start.drawn or Sample()
        wish = Wish(case.name, wanted.slice, drawn.num_samples, drawn.seed, wanted.at)

        def make() -> "Prediction":
            if start.state is not None:
                return self._predict(wish, case, read, job, state=read_state(start.state))
            if drawn.sample >= drawn.num_samples:
                raise DataError(f"sample: expected below {drawn.num_samples}, got {drawn.sample}")
            return self._predict(wish, case, read, job).pick(drawn.sample)

        key = case.name, wanted.slice, wanted.at, start.model_dump_json()
        return self._bases.get_or(key, make, _bytes_held)

    def _edit(self, case: Case, read: Callable[[Case], Stored], wanted: EditWanted, job: Job) -> dict[str, Any]:
        start, action = time.perf_counter(), wanted.action
        base = self._base(case, read, wanted, wanted.start, job)
        other = self._base(case, read, wanted, action.other, job) if isinstance(action, Combine) else None
        job.advance()
        found = edited(base, action, other=other)
        _, y, x = found.place.offset
        h, w = found.mean.shape
        labels = np.asarray(found.samples[0], dtype=np.uint8)
        return {
            "state": found.state(),
            "place": {"y": y, "x": x, "height": h, "width": w},
            "value_map": runs_of(labels),
            **measured(labels, foreground=found.info.foreground, spacing=found.spacing),
            "units": "px" if found.spacing is None else "mm",
            **latent_grid(found),
            "notes": list(found.notes),
            "seconds": round(time.perf_counter() - start, 3),
        }

    def _open(
        self,
        predictor: "Predictor",
        wish: Wish | VolumeWish,
        case: Case,
        read: Callable[[Case], Stored],
        options: Any,
    ) -> "OpenedImage":
        from hpunet.predict.open_image import open_stored

        def make() -> "OpenedImage":
            how: dict[str, Any] = {"info": predictor.info, "crop": predictor.settings.data.crop}
            how |= {"window": options.window, "region": options.region}
            return open_stored(read(case), name=case.name, where=case.name, **how)

        return self._opened.get_or((wish.case, wish.at), make, lambda source: source.images.nbytes)

    def _encode(self, predictor: "Predictor", wish: Wish, source: "OpenedImage") -> dict[int, "Features"]:
        """The encoder's features; not of large images, whose orientations are encoded one by one while drawing."""
        key = wish.case, wish.number, wish.at
        features = self._features.get(key)
        if features is None:
            features = predictor.encode(source, number=wish.number)
            if features.together is not None:
                size = sum(each.nbytes for each in features.together)
                if size <= FEATURE_BYTES:
                    self._features.put(key, features, size)
        return {wish.number: features}

    def _new_name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._session}-{self._count}"

    def _named(self, prediction: "Prediction", instances: np.ndarray | None, answer: dict[str, Any]) -> Drawn:
        name = self._new_name("p")
        mean, std = (
            np.rint(255 * np.clip(each, 0, 1)).astype(np.uint8) for each in (prediction.mean, 2 * prediction.std)
        )
        samples = np.asarray(prediction.samples, dtype=np.uint8)
        return Drawn(name, samples, mean, std, instances, {"prediction": name, **answer})


def _bytes_held(base: "Prediction") -> int:
    kept = None if base.features is None else base.features.together
    return 9 * base.mean.size + sum(each.nbytes for each in kept or ())
