"""The web application of `hpunet view`: routes only. What they do is in the other files of this package."""

import asyncio
import gzip
import mimetypes
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import numpy as np
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi import Path as PathPart
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as StarletteHTTPException

from hpunet import __version__
from hpunet.data.io.inputs import ENDINGS
from hpunet.errors import ConfigError, HPUNetError
from hpunet.utils.files import read_file
from hpunet.viewer.cases import Case
from hpunet.viewer.drawing import BusyError, CancelledError, Job, Wish
from hpunet.viewer.edits import MAX_SAMPLES, EditWanted, ScaleMapWanted
from hpunet.viewer.events import MAX_EVENTS, Event, EventError
from hpunet.viewer.security import MAX_UPLOAD_BYTES, UPLOAD, Guard
from hpunet.viewer.state import MissingError, Viewer
from hpunet.viewer.volumes import DrawnVolume, MapKind, Plane, VolumeWish
from hpunet.viewer.worklist import ConflictError, DiskError

STATIC = Path(__file__).parent / "static"
_BINARY = "application/octet-stream"
_MAX_UPLOADS_READ = 2  # at the same time: each may take much memory
_FORGOTTEN = "these samples are no longer in memory; draw them again with the same seed"
_Coordinate = Annotated[float, Field(allow_inf_nan=False)]
_Slice = Annotated[int, Query(alias="slice", ge=0, lt=2**31)]
_Seed = Annotated[int, Field(strict=True, ge=0, lt=2**32)]


class Refused(BaseModel):
    """Why a request is refused, in one sentence."""

    detail: str


_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": words, "model": Refused}
    for status, words in {
        400: "an image that cannot be read or saved",
        403: "a foreign host or origin, or no token",
        404: "no such case, slice, grader or prediction",
        405: "another method",
        409: "another tab was faster",
        413: "too many bytes",
        422: "a request that makes no sense",
        429: "too many requests wait",
    }.items()
}


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class VolumeWanted(_Body):
    """What to draw of a whole volume."""

    num_samples: Annotated[int, Field(strict=True, ge=1, le=MAX_SAMPLES)] = 16
    seed: _Seed = 0
    at: tuple[_Coordinate, _Coordinate] | None = None


class SamplesWanted(VolumeWanted):
    """What to draw of a slice."""

    slice: Annotated[int, Field(strict=True, ge=0)] = 0


class NewEvents(_Body):
    """What a person did since a version."""

    version: Annotated[int, Field(strict=True, ge=0)]
    events: Annotated[list[Event], Field(max_length=MAX_EVENTS)]


class Export(_Body):
    """The format to save a case in, and the slice that formats of one slice hold."""

    format: Literal["png", "nifti", "json", "state", "dicom-seg", "rtstruct", "geojson", "imagej"]
    slice: Annotated[int, Field(strict=True, ge=0)] = 0


def create_app(viewer: Viewer, *, token: str, host: str, port: int, static: Path = STATIC) -> Guard:
    """The application behind its guard."""
    app = FastAPI(
        title="hpunet view", version=__version__, openapi_url="/api/openapi.json", docs_url=None, redoc_url=None
    )
    pages, uploads_read = read_pages(static), asyncio.Semaphore(_MAX_UPLOADS_READ)
    _handle_errors(app, viewer)

    def case_of(number: int) -> Case:
        if not 0 <= number < len(viewer.cases):
            raise HTTPException(404, "there is no such case")
        return viewer.cases[number]

    def volume_of(name: str) -> DrawnVolume:
        drawn = viewer.drawing.found_volume(name)
        if drawn is None:
            raise HTTPException(404, _FORGOTTEN)
        return drawn

    @app.get("/api/session", responses=_ERRORS)
    async def session() -> dict[str, Any]:
        await viewer.loaded()
        return viewer.session()

    @app.get("/api/cases", responses=_ERRORS)
    async def cases() -> dict[str, Any]:
        summary = await run_in_threadpool(viewer.work_list.summary)
        return {"cases": [{"id": number, **each} for number, each in enumerate(summary)]}

    @app.get("/api/cases/{number}", responses=_ERRORS)
    async def case(number: int) -> dict[str, Any]:
        await viewer.loaded()
        return {"id": number, **await run_in_threadpool(viewer.about, case_of(number))}

    @app.get("/api/cases/{number}/image", responses=_ERRORS, response_class=Response)
    async def image(number: int, z: _Slice = 0, plane: Plane = "axial") -> Response:
        values = await run_in_threadpool(viewer.plane, case_of(number), z, plane)
        shape = values.shape if values.ndim == 3 else (*values.shape, 1)
        content = await run_in_threadpool(_bytes, values)
        return _array(content, shape, dtype=values.dtype.name)

    @app.get("/api/cases/{number}/graders/{grader}", responses=_ERRORS, response_class=Response)
    async def grader(number: int, grader: int, z: _Slice = 0, plane: Plane = "axial") -> Response:
        labels = await run_in_threadpool(viewer.grader, case_of(number), grader, z, plane)
        return _array(labels.tobytes(), labels.shape)

    @app.post("/api/cases/{number}/samples", responses=_ERRORS)
    async def samples(number: int, wanted: SamplesWanted, request: Request) -> Response:
        chosen = case_of(number)
        await viewer.loaded()
        await run_in_threadpool(viewer.plane, chosen, wanted.slice)  # reads the file here, not in the model's thread
        wish = Wish(chosen.name, wanted.slice, wanted.num_samples, wanted.seed, wanted.at)
        job = viewer.drawing.draw(wish, chosen, viewer.images.read)
        return JSONResponse((await _result(job, request)).answer)

    @app.post("/api/cases/{number}/volumes", responses=_ERRORS)
    async def volume(number: int, wanted: VolumeWanted, request: Request) -> Response:
        chosen = case_of(number)
        await viewer.loaded()
        await run_in_threadpool(viewer.read, chosen)  # reads the file here, not in the model's thread
        wish = VolumeWish(chosen.name, wanted.num_samples, wanted.seed, wanted.at)
        job = viewer.drawing.draw_volume(wish, chosen, viewer.images.read)
        return JSONResponse((await _result(job, request)).answer)

    @app.get("/api/progress", responses=_ERRORS)
    async def progress() -> dict[str, int]:
        return {"num_done": viewer.drawing.num_done}

    @app.get("/api/volumes/{name}/runs/{hypothesis}", responses=_ERRORS)
    async def runs(name: str, hypothesis: Annotated[int, PathPart(ge=0, lt=MAX_SAMPLES)]) -> Response:
        return JSONResponse({"value_map": await run_in_threadpool(volume_of(name).runs, hypothesis)})

    @app.get("/api/volumes/{name}/{what}", responses=_ERRORS, response_class=Response)
    async def plane(name: str, what: MapKind, z: _Slice = 0, plane: Plane = "axial") -> Response:
        values = await run_in_threadpool(volume_of(name).plane, what, plane, z)
        return _array(_bytes(values), values.shape, dtype=values.dtype.name)

    @app.post("/api/cases/{number}/edits", responses=_ERRORS)
    async def edit(number: int, wanted: EditWanted, request: Request) -> Response:
        chosen = case_of(number)
        await viewer.loaded()
        await run_in_threadpool(viewer.plane, chosen, wanted.slice)
        return JSONResponse(await _result(viewer.drawing.edit(chosen, viewer.images.read, wanted), request))

    @app.post("/api/cases/{number}/scale-maps", responses=_ERRORS, response_class=Response)
    async def map_of_scale(number: int, wanted: ScaleMapWanted, request: Request) -> Response:
        chosen = case_of(number)
        await viewer.loaded()
        await run_in_threadpool(viewer.plane, chosen, wanted.slice)
        values, most = await _result(viewer.drawing.scale_map(chosen, viewer.images.read, wanted), request)
        return _array(values.tobytes(), values.shape, most=most)

    @app.get("/api/predictions/{name}/{what}", responses=_ERRORS, response_class=Response)
    async def prediction(
        name: str, what: Literal["samples", "mean", "std", "instances"], request: Request
    ) -> Response:
        drawn = viewer.drawing.found(name)
        if drawn is None:
            raise HTTPException(404, _FORGOTTEN)
        values: np.ndarray | None = getattr(drawn, what)
        if values is None:
            raise HTTPException(404, "the model was trained on classes, not on instances")
        content, dtype = _bytes(values), values.dtype.name
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return _array(content, values.shape, dtype=dtype)
        content = await run_in_threadpool(gzip.compress, content, 1, mtime=0)
        return _array(content, values.shape, dtype=dtype, encoding="gzip")

    @app.get("/api/cases/{number}/events", responses=_ERRORS)
    async def events(number: int) -> dict[str, Any]:
        version, found = await run_in_threadpool(viewer.work_list.events, case_of(number))
        return {"version": version, "events": found}

    @app.post("/api/cases/{number}/events", responses=_ERRORS)
    async def add_events(number: int, new: NewEvents) -> dict[str, Any]:
        chosen = case_of(number)
        await viewer.loaded()
        return await run_in_threadpool(viewer.add_events, chosen, new.events, version=new.version)

    @app.get("/api/cases/{number}/mask", responses=_ERRORS, response_class=Response)
    async def mask(number: int, z: _Slice = 0) -> Response:
        values = await run_in_threadpool(viewer.mask, case_of(number), z)
        return _array(_bytes(values), values.shape, dtype=values.dtype.name)

    @app.post("/api/cases/{number}/export", responses=_ERRORS, response_class=Response)
    async def export_case(number: int, wanted: Export) -> Response:
        chosen = case_of(number)
        await viewer.loaded()

        def write() -> Any:
            return viewer.export(chosen, kind=wanted.format, number=wanted.slice)

        file = await run_in_threadpool(write)
        names = f"attachment; filename*=UTF-8''{quote(file.name, safe='')}"
        return Response(file.content, media_type=file.media_type, headers={"Content-Disposition": names})

    @app.post(UPLOAD, responses=_ERRORS, openapi_extra=_UPLOAD_BODY)
    async def upload(request: Request, name: Annotated[str, Query(max_length=300)]) -> dict[str, int]:
        async with uploads_read:
            with viewer.work_list.temporary() as folder:
                known = next((each for each in ENDINGS if name.lower().endswith(each)), "")
                path, size = Path(folder) / f"upload{known}", 0
                with path.open("wb") as file:
                    async for chunk in request.stream():
                        size += len(chunk)
                        if size > MAX_UPLOAD_BYTES:
                            raise HTTPException(413, f"more than {MAX_UPLOAD_BYTES} bytes")
                        await run_in_threadpool(file.write, chunk)
                return {"id": await run_in_threadpool(viewer.work_list.upload, name, path)}

    @app.get("/{path:path}", include_in_schema=False)
    async def page(path: str) -> Response:
        if path not in pages:
            raise HTTPException(404, "there is no such page")
        content, media_type = pages[path]
        return Response(content, media_type=media_type)

    return Guard(app, token=token, host=host, port=port)


_UPLOAD_BODY = {
    "requestBody": {"required": True, "content": {_BINARY: {"schema": {"type": "string", "format": "binary"}}}}
}


def read_pages(static: Path) -> dict[str, tuple[bytes, str]]:
    """The files of the page, by address; a `ConfigError` if it is not built."""
    if not (static / "index.html").is_file():
        raise ConfigError(f"{static}: has no index.html, the page is not built; run make web, or install a wheel")
    files = {file.relative_to(static).as_posix(): file for file in sorted(static.rglob("*")) if file.is_file()}
    found = {}
    for name, file in files.items():
        kind = {".js": "text/javascript", ".html": "text/html; charset=utf-8"}.get(file.suffix)
        found[name] = read_file(file), kind or mimetypes.guess_type(file.name)[0] or _BINARY
    return found | {"": found["index.html"]}


def _bytes(values: np.ndarray) -> bytes:
    """Little endian."""
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def _array(
    content: bytes, shape: tuple[int, ...], *, dtype: str = "uint8", encoding: str | None = None, most: float = 1.0
) -> Response:
    """An array; `most` is what its largest possible value stands for."""
    about = {"X-Shape": ",".join(map(str, shape)), "X-Dtype": dtype, "X-Most": f"{most:g}"}
    about |= {"Content-Encoding": encoding} if encoding else {}
    return Response(content, media_type=_BINARY, headers=about)


async def _result(job: Job, request: Request) -> Any:
    """The result of a job, which is cancelled if the client goes."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    result, left = asyncio.wrap_future(job.future), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({result, left}, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise CancelledError
        return result.result()
    finally:
        left.cancel()
        result.cancel()
        job.cancel()


def _handle_errors(app: FastAPI, viewer: Viewer) -> None:
    """One sentence, without paths."""

    def answer(status: int, words: str, **more: Any) -> JSONResponse:
        return JSONResponse({"detail": viewer.without_paths(words), **more}, status_code=status)

    @app.exception_handler(StarletteHTTPException)
    async def http(_: Request, error: StarletteHTTPException) -> Response:
        return answer(error.status_code, str(error.detail))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part)[:40] for part in first["loc"])
        return answer(422, f"{place}: {first['msg'][:200]}")

    @app.exception_handler(HPUNetError)
    async def refused(_: Request, error: HPUNetError) -> Response:
        if isinstance(error, ConflictError):
            return answer(409, str(error), version=error.version)
        statuses: dict[type, int] = {MissingError: 404, EventError: 422, BusyError: 429, DiskError: 507}
        return answer(statuses.get(type(error), 400), str(error))

    @app.exception_handler(CancelledError)
    async def cancelled(_: Request, error: CancelledError) -> Response:
        return answer(400, "cancelled, because the client left")

    @app.exception_handler(Exception)
    async def bug(_: Request, error: Exception) -> Response:
        frames = error.__traceback__
        while frames is not None and frames.tb_next is not None:
            frames = frames.tb_next
        where = f"{Path(frames.tb_frame.f_code.co_filename).name}:{frames.tb_lineno}" if frames else "somewhere"
        viewer.say(f"A request failed: {type(error).__name__} in {where}; please report it.")
        return answer(500, "this is a bug of hpunet; the terminal says where")
