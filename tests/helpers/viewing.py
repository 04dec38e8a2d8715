"""A viewer of small images with an untrained model, served as `hpunet view` serves it, and a client of it."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from PIL import Image
from untrained import make_predictor, make_trained

from hpunet.data.io.geometry import Geometry
from hpunet.data.io.volumes import encode_nifti
from hpunet.predict.prediction import stack_slices
from hpunet.predict.predictor import Predictor
from hpunet.viewer.cases import find_cases
from hpunet.viewer.drawing import Drawing
from hpunet.viewer.server import create_app
from hpunet.viewer.state import Viewer
from hpunet.viewer.worklist import open_work_list

TOKEN, HOST = "a-token-for-tests", "127.0.0.1"
_AFFINE = [[0, -0.8, 0, 0], [-0.5, 0, 0, 0], [0, 0, 2.5, 0], [0, 0, 0, 1]]  # of (row, column, slice)
SOURCE = {"hypothesis": 0, "share": 0.5, "seed": 0, "num_samples": 16, "at": None, "state": None, "num_edits": 0}


def write_images(folder: Path, *, count: int = 2, side: int = 16) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for number in range(count):
        pixels = random.integers(0, 256, (side, side), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"image-{number:03d}.png")
    return folder


def write_cells(folder: Path, *, count: int = 1, side: int = 64) -> Path:
    """Images of five bright discs."""
    folder.mkdir(parents=True, exist_ok=True)
    y, x = np.mgrid[:side, :side] * 64 / side
    for number in range(count):
        pixels = np.full((side, side), 30, dtype=np.uint8)
        for i, (top, left) in enumerate([(14, 14), (14, 40), (36, 20), (40, 48), (54, 30)]):
            pixels[(y - top) ** 2 + (x - left) ** 2 < 81] = 120 + 25 * i
        Image.fromarray(pixels).save(folder / f"cells-{number:03d}.png")
    return folder


def write_page(folder: Path) -> Path:
    (folder / "assets").mkdir(parents=True, exist_ok=True)
    (folder / "index.html").write_text("<!doctype html><title>page</title>")
    (folder / "assets" / "page.js").write_text("'use strict';")
    return folder


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content)

    def array(self) -> np.ndarray:
        shape = [int(side) for side in self.headers["x-shape"].split(",")]
        return np.frombuffer(self.content, dtype=self.headers["x-dtype"]).reshape(shape)


class Client:
    """One connection, like that of one tab."""

    def __init__(self, port: int, *, token: str | None = TOKEN, timeout: float = 60) -> None:
        self.port, self.token = port, token
        self._connection = http.client.HTTPConnection(HOST, port, timeout=timeout)

    def ask(
        self, method: str, path: str, *, body: Any = None, content: bytes | None = None, **headers: str
    ) -> Answer:
        """`body` is sent as JSON; underlines in names of headers are dashes."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token is not None:
            sent.setdefault("X-Hpunet-Token", self.token)
        if body is not None:
            content = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        self._connection.request(method, path, body=content, headers=sent)
        answer = self._connection.getresponse()
        names = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, names, answer.read())

    def get(self, path: str, **how: Any) -> Answer:
        return self.ask("GET", path, **how)

    def post(self, path: str, body: Any = None, **how: Any) -> Answer:
        return self.ask("POST", path, body=body, **how)

    def close(self) -> None:
        self._connection.close()


@contextmanager
def open_viewer(folder: Path, paths: Sequence[Path], *, load: Callable[[], Any] = make_predictor) -> Iterator[Viewer]:
    with ExitStack() as stack:
        work_list = stack.enter_context(open_work_list(folder, find_cases(paths), model="run"))
        drawing = Drawing(load)
        drawing.start()
        stack.callback(drawing.close, timeout=60.0)
        said: list[str] = []
        viewer = Viewer(drawing, work_list, say=said.append)
        yield viewer
        assert said == []  # no bug showed itself


@contextmanager
def serve(viewer: Viewer, *, static: Path) -> Iterator[int]:
    """The port of a server in another thread."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind((HOST, 0))
        listening.listen(128)
        port = listening.getsockname()[1]
        app: Any = create_app(viewer, token=TOKEN, host=HOST, port=port, static=static)
        server = uvicorn.Server(
            uvicorn.Config(app, access_log=False, log_level="critical", server_header=False, timeout_keep_alive=300)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.005)
            yield port
        finally:
            server.should_exit = server.force_exit = True
            thread.join()


@contextmanager
def open_client(folder: Path, paths: Sequence[Path], **how: Any) -> Iterator[tuple[Client, Viewer]]:
    """A viewer whose work list and page are in this folder."""
    page = write_page(folder / "page")
    with open_viewer(folder / "list", paths, **how) as viewer, serve(viewer, static=page) as port:
        client = Client(port)
        yield client, viewer
        client.close()


def write_volume(path: Path, *, shape: tuple[int, int, int] = (6, 16, 24)) -> Path:
    """Noise (d, h, w) as NIfTI: voxels of 2.5 × 0.5 × 0.8 mm, higher slices higher in the patient."""
    values = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    header = Geometry.from_affine(np.array(_AFFINE), axes="zyx").nifti_header(shape)
    path.write_bytes(encode_nifti(values, header=header))
    return path


class VolumePredictor(Predictor):
    """Gives volumes, as a 3D model does: all slices in one prediction."""

    def __init__(self) -> None:
        super().__init__(make_trained())
        self.model.ndim = 3

    def each_slice(self, source: Any, **how: Any) -> Iterator[Any]:
        self.model.ndim = 2
        parts = list(super().each_slice(source, **how))
        self.model.ndim = 3
        yield stack_slices(parts, name=source.name)
