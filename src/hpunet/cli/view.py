"""`hpunet view`: look at hypotheses in the browser, choose and correct one."""

import atexit
import os
import secrets
import socket
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpunet.cli import options as cli
from hpunet.cli.terminal import console, flush_streams, notes, print_error
from hpunet.errors import ConfigError, DataError, HPUNetError
from hpunet.utils.files import parse_json, read_file

if TYPE_CHECKING:
    from hpunet.predict.predictor import Predictor

_RUN = "Run folder, or name of published weights; by default the published model."
_IMAGES = (
    "Images, NIfTI volumes, folders of images, DICOM series, and data folders with graders; by default the examples "
    "that ship with hpunet."
)
_WORK_LIST = "Folder for what you decide; by default one in your data folder, found again by the same command."
DEFAULT_PORT = 8765
_PORT = f"Port; by default {DEFAULT_PORT}, or a free one if it is in use."
_HOST = "Address to listen at. Beyond this machine (0.0.0.0) it needs --token."
_TOKEN = "Password in the address; by default a random one."  # nosec B105 # help for the option
_DEVICE = "cpu, cuda, or cuda:1; by default a GPU if there is one."
_MIN_TOKEN = 12


def view_command(
    run: Annotated[Path, typer.Argument(help=_RUN, metavar="[MODEL]")] = Path("lidc-hpu-2026"),
    images: Annotated[list[Path] | None, typer.Argument(help=_IMAGES)] = None,
    work_list: Annotated[Path | None, typer.Option("--worklist", help=_WORK_LIST)] = None,
    graders: cli.Graders = None,
    patient: cli.Patient = None,
    window: cli.Window = None,
    port: Annotated[int | None, typer.Option(help=_PORT, min=0, max=65535)] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address only.")] = False,
    device: Annotated[str | None, typer.Option(help=_DEVICE)] = None,
    kernels: cli.Kernels = "auto",
    host: Annotated[str, typer.Option(help=_HOST)] = "127.0.0.1",
    token: Annotated[str | None, typer.Option(help=_TOKEN)] = None,
    static: Annotated[Path | None, typer.Option(help="Folder of the page, to develop it.")] = None,
) -> None:
    """Look at hypotheses in the browser; choose one, correct it, and take it with you.

    Every step is saved at once. Ctrl-C ends it; the same command goes on where you stopped.
    """
    try:
        import uvicorn

        from hpunet.viewer.server import STATIC, create_app
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn", "starlette"):
            raise
        raise ConfigError(
            f"view: needs {error.name}: pip install fastapi uvicorn (pip install '.[view]' in a clone)"
        ) from None
    from hpunet.data.examples.load import example
    from hpunet.viewer.cases import find_cases
    from hpunet.viewer.drawing import Drawing
    from hpunet.viewer.security import is_loopback
    from hpunet.viewer.server import read_pages
    from hpunet.viewer.state import DISCLAIMER, Viewer
    from hpunet.viewer.worklist import default_folder, open_work_list

    if not is_loopback(host):
        if token is None or len(token) < _MIN_TOKEN:
            raise ConfigError(
                f"--host {host}: others can reach it; choose a --token of at least {_MIN_TOKEN} characters"
            )
        notes.print(
            f"Anyone who reaches {host} and knows the token can see these images and change this work list. Traffic "
            "is not encrypted: use it only in networks that you trust, or through an SSH tunnel."
        )
    static = STATIC if static is None else static
    read_pages(static)  # refuses a page that is not built before anything else
    _check_run(run)
    paths = images or [example("lidc").path.parents[1]]
    named = cli.as_data_options(graders=graders, patient=patient)
    try:
        cases = find_cases(paths, **(named or _names_in_training(run)))
    except DataError:
        if named:
            raise
        cases = find_cases(paths)  # of another kind than the images of training
    folder = work_list or default_folder(
        [str(path.absolute()) if path.exists() else str(path) for path in [run, *paths]]
    )
    listening = _listen(host, port)
    token = token or secrets.token_urlsafe(18)
    number = listening.getsockname()[1]
    address = f"http://{_shown(host)}:{number}/?token={token}"

    def load() -> "Predictor":
        from hpunet.predict.predictor import load

        return load(run, device=device, kernels=kernels)

    with listening, open_work_list(folder, cases, model=run.name) as found:
        drawing = Drawing(load, window=window)
        viewer = Viewer(drawing, found, say=notes.print)
        app = create_app(viewer, token=token, host=host, port=number, static=static)
        config = uvicorn.Config(
            app, access_log=False, log_level="critical", server_header=False, timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        drawing.predictor.add_done_callback(lambda loaded: setattr(server, "should_exit", bool(loaded.exception())))
        drawing.start()
        if cases:
            drawing.draw_ahead(cases[0], viewer.images.read)
        console.print(address)
        notes.print(f"Work list: {folder}")
        notes.print(f"{DISCLAIMER} Ctrl-C ends it; what you did is saved.")
        if not no_browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        try:
            server.run(sockets=[listening])
        finally:
            if not drawing.close(
                timeout=2.0
            ):  # in the middle of loading or of a large image; all work is on the disk
                atexit.register(_leave)
    failure = drawing.predictor.exception() if drawing.predictor.done() else None
    if isinstance(failure, (HPUNetError, OSError)):
        raise failure
    if failure is not None:
        print_error(f"{run}: cannot be loaded: {type(failure).__name__}: {failure}")
        raise typer.Exit(2)


def _leave() -> None:
    """End at once: torch would abort where a thread of it is still running."""
    flush_streams()
    os._exit(130)


def _check_run(run: Path) -> None:
    """Refuse what is surely no model before a page opens; the rest is checked while it is loaded."""
    if run.is_file():
        raise ConfigError(f"{run}: is a file; name a model first: hpunet view lidc-hpu-2026 {run}")
    names = ("settings.json", "checkpoints", "model.json", "config.json")
    if run.is_dir() and not any((run / name).exists() for name in names):
        raise ConfigError(f"{run}: is no model; name one first: hpunet view lidc-hpu-2026 {run}")


def _names_in_training(run: Path) -> dict[str, Any]:
    """--graders and --patient of a run, which its images may be named by, too."""
    path = run / "settings.json"
    if not path.is_file():
        return {}
    try:
        options = parse_json(read_file(path), name=str(path))["data"]["options"]
        return cli.as_data_options(graders=options.get("graders"), patient=options.get("patient"))
    except (HPUNetError, AttributeError, KeyError, TypeError):
        return {}  # the run's loading says what is wrong


def _listen(host: str, port: int | None) -> socket.socket:
    """A socket at the port, or, if none was chosen, at the default one or else at a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    wanted: Sequence[int] = (DEFAULT_PORT, 0) if port is None else (port,)
    for number in wanted:
        # asyncio sends small answers at once (TCP_NODELAY) only where the protocol is named.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            if os.name == "posix":
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host.strip("[]"), number))
            listening.listen(128)
        except OSError as error:
            listening.close()
            failure = error
        else:
            return listening
    raise ConfigError(f"--host {host} --port {wanted[-1]}: cannot listen: {failure.strerror}; choose another --port")


def _shown(host: str) -> str:
    everywhere = "0.0.0.0"  # nosec B104 # only compared; to listen there needs a token
    if host in (everywhere, "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
