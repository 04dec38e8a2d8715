"""Names, terminals, paths and signals that commands should take as they come. Nearly all run in this process."""

import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from tiny_run import BASE, write_tiny_pack

from hpunet.cli import progress as cli_progress
from hpunet.cli.main import main
from hpunet.errors import CheckpointError, DataError
from hpunet.evaluation.rows import read_rows
from hpunet.reports.contents import Section
from hpunet.reports.page import write_page
from hpunet.training.loggers import read_log
from hpunet.utils.files import atomic_write, parse_json

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes only there")

NAMES = (
    "=1+1",
    "-x",
    "@SUM(A1)",
    "'=q",
    "a\x1b]0;title\x07b",
    "line\nerror: none",
    "a$b$c",
    "{x}",
    "\u202egnp",
    "[red]",
)
UNDECODED = os.fsdecode(b"caf\xe9")
DATA = os.fsdecode(b"d\xe9[red]\x1b[31m")
RUN = os.fsdecode(b"r[/b]\xe9\x1b[31m=$x_{y}")
"""The folder `b]…` in the folder `r[`."""
IMAGES = f"{DATA}/images"
TINY = [f"--set={group}.{key}={value}" for group in BASE for key, value in BASE[group].items() if key != "options"]
TRAIN = ["train", "demo", *TINY, "--set", "optimiser.iterations=1", "--set", "objective.kind=geco"]


def hpunet(*arguments: str, encoding: str = "utf-8") -> tuple[int, str, str]:
    """Exit code, output and messages of a command on a terminal of that encoding."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
    code: object = 0
    before, sys.argv = sys.argv, ["hpunet", *arguments]
    try:
        with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
            main()
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        sys.argv = before
    for stream in streams:
        stream.flush()
    out, messages = (stream.buffer.getvalue().decode(encoding) for stream in streams)  # type: ignore[attr-defined]
    assert "\x1b" not in out + messages
    assert "\u202e" not in out + messages
    assert isinstance(code, int)
    return code, out, messages


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder, with images of two graders and a run, both of awkward names."""
    folder = tmp_path_factory.mktemp("rough")
    before = Path.cwd()
    os.chdir(folder)
    pixels = np.random.default_rng(0).integers(0, 2, (len(NAMES) + 1, 16, 16), dtype=np.uint8) * 255
    for number, name in enumerate((*NAMES, UNDECODED)):
        for part in ("images", "graders/=b\x1b[2J", "graders/a[red]"):
            Path(DATA, part).mkdir(parents=True, exist_ok=True)
            with open(Path(DATA, part, f"{name}.png"), "wb") as file:
                Image.fromarray(pixels[number]).save(file, format="PNG")
    write_tiny_pack(folder / "pack")
    yield folder
    os.chdir(before)


@pytest.fixture(scope="module")
def run(place: Path) -> str:
    code, _, messages = hpunet(*TRAIN, "--data", "pack", "--out", RUN)
    assert code == 0, messages
    assert "Done: " in messages  # it once ended in a traceback here, for the path was taken for markup
    assert r"b]\xe9\x1b[31m=$x_{y}" in messages
    return RUN


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_data_of_awkward_names_are_inspected_and_packed(place: Path, encoding: str) -> None:
    code, out, messages = hpunet("data", "info", DATA, "--out", f"sheets-{UNDECODED}", encoding=encoding)
    assert code == 0, messages
    assert r"d\xe9[red]\x1b[31m: folder, 1 channel(s)" in out
    assert r"=b\x1b[2J and a[red]" in out
    code, out, messages = hpunet("data", "pack", DATA, f"{DATA}-{encoding}", encoding=encoding)
    assert code == 0, messages
    assert rf"d\xe9[red]\x1b[31m-{encoding} (" in out
    code, out, messages = hpunet("init", "--data", DATA, "--out", f"{DATA}-{encoding}.toml", encoding=encoding)
    assert code == 0, messages
    assert hpunet("--help", encoding=encoding)[0] == 0


def test_images_of_awkward_names_are_sampled(run: str) -> None:
    files = [f"{IMAGES}/{name}.png" for name in ("[red]", "a\x1b]0;title\x07b", UNDECODED)]
    code, out, messages = hpunet(
        "sample", run, *files, "--out", f"o[/b]{UNDECODED}", "--samples", "1", encoding="ascii"
    )
    assert code == 0, messages
    assert r"caf\xe9: 1 distinct" in out
    assert r"a\x1b]0;title\x07b" in out
    assert Path(f"o[/b]{UNDECODED}", UNDECODED, "hypotheses.json").is_file()


def test_rows_keep_awkward_names_and_no_cell_is_a_formula(run: str) -> None:
    how = ["--data", DATA, "--samples", "2", "--split", "train", "--out", "scores"]
    code, _, messages = hpunet("evaluate", run, *how, encoding="ascii")
    assert code == 0, messages
    folders = [f"scores/{Path(run).name}", f"=s[/b]{UNDECODED}"]
    shutil.copytree(*folders)
    rows = Path(folders[0], "rows.csv")
    found = {row.key for row in read_rows(rows)}
    assert found <= {*NAMES, UNDECODED}
    assert len(found) > len(NAMES) / 2
    lines = rows.read_bytes().splitlines()
    assert not [line for line in lines if line.split(b",")[1:2] and line.split(b",")[1][:1] in (b"=", b"-", b"@")]
    how = ["--samples", "2", "--split", "train", "--csv", "all.csv", "--out", "compared"]
    code, out, messages = hpunet("compare", f"=2={folders[0]}", f"[/b]\x1b=$_{UNDECODED}={folders[1]}", *how)
    assert code == 0, messages
    assert r"[/b]\x1b=$_caf\xe9" in " ".join(out.split())
    assert b"\n'=2,ged2" in Path("all.csv").read_bytes()


@pytest.mark.parametrize("name", [*NAMES, UNDECODED, "''=", "plain", "", "'", "+1", "\t=1"])
def test_csv_cells_of_names_read_back_equal(name: str) -> None:
    from hpunet.utils.text import as_utf8, csv_text, from_csv_text, from_utf8

    cell = csv_text(name)
    assert cell[:1] not in ("=", "+", "-", "@", "\t", "\r")
    assert from_csv_text(from_utf8(as_utf8(cell))) == name


def test_pages_of_awkward_names_are_utf8(tmp_path: Path) -> None:
    section = Section(f"Run {UNDECODED} <b>", [])
    page = write_page([section], tmp_path / "x.html", figures=None, title=RUN, tables=(), progress=lambda d, _: d)
    assert r"Run caf\xe9 &lt;b&gt;" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "arguments",
    [
        ["sample", RUN, f"{IMAGES}/[red].png", "--out", "x", "--checkpoint", "/"],
        ["sample", RUN, f"{IMAGES}/[red].png", "--out", "x", "--checkpoint", "../checkpoints/best"],
        ["export", RUN, "", "--name", "abc"],
        ["export", RUN, "/", "--name", "abc"],
        ["report", "loop"],
        ["compare", "loop", RUN],
        ["train", "demo", "--data", "loop", "--out", "x"],
        ["train", "pipe.toml", "--data", "pack", "--out", "x"],
        ["init", "--data", "pack", "--set", f"size={'[' * 5000}"],
        ["init", "--data", "pack", "--set", f"size={'1' * 5000}"],
        ["\x1b[31m[/b]"],
        ["data", "pack", "a", "b", f"\x1b[31m{UNDECODED}"],
        ["evaluate", "no\nsuch\x1b[31m[/b]", "--data", "pack"],
        ["init", "--data", "x" * 5000],
    ],
)
@pytest.mark.timeout(60)
def test_absurd_arguments_are_refused_in_words(run: str, arguments: list[str]) -> None:
    if not os.path.lexists("loop"):
        os.symlink("loop", "loop")
        os.mkfifo("pipe.toml")
    code, _, messages = hpunet(*arguments)
    assert code == 2
    assert "rror" in messages
    assert messages.startswith("Usage: ") or messages.count("\n") == 1


@pytest.mark.timeout(60)
def test_a_pipe_is_no_image(run: str) -> None:
    os.mkfifo("pipe")
    code, _, messages = hpunet("sample", run, "pipe", "--out", "x")
    assert code == 1
    assert "pipe: expected an image" in messages


def test_pipes_and_devices_are_written_to_and_stay(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # the way of /dev/null, which --json once replaced by a file
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    atomic_write(tmp_path / "pipe", b"content")
    assert os.read(reader, 100) == b"content"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize(
    "content", [b'{"a": "\\ud800"}', b'{"a": 1%s}' % (b"0" * 400), b'["\\udc80", "\\udbff x"]', b"[" * 5000]
)
def test_json_that_could_not_be_used_is_refused(content: bytes) -> None:
    with pytest.raises(CheckpointError, match="here"):
        parse_json(content, name="here")
    assert parse_json(b'["caf\\udce9", "\\ud83d\\ude00", -12345678901234567890]', name="x")[0] == UNDECODED


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", "1" + 400 * "0"])
def test_a_log_with_numbers_that_are_none_is_damaged(tmp_path: Path, value: str) -> None:
    (tmp_path / "log.jsonl").write_text(f'{{"step": 1, "rec": {value}}}\n')
    with pytest.raises(DataError, match="line 1"):
        read_log(tmp_path / "log.jsonl", strict=True)


def test_descriptions_of_data_are_of_the_right_types() -> None:
    code = """
from hpunet.data.synthetic.source import INFO
from hpunet.data.types import SetInfo
from hpunet.errors import DataError
described = INFO["lesions"].as_json()
assert SetInfo.from_json(described, where="here") == INFO["lesions"]
for name in ("kind", "fixed_classes", "stochastic_classes", "grader_names", "image_size", "spacing"):
    for value in (7, [[]], [None, "x"], {"a": 1}, [1e308, 10**400], [-1, -1, "x"]):
        try:
            SetInfo.from_json({**described, name: value}, where="here")
        except DataError:
            continue
        raise AssertionError((name, value))
"""
    assert child(code).stderr == b""  # a process of its own: in this one beartype checks types


def test_progress_bars_show_awkward_names(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    terminal = type(cli_progress.notes)(file=out, force_terminal=True, width=80)
    monkeypatch.setattr(cli_progress, "notes", terminal)
    assert list(cli_progress.tracked([1, 2], 2, "{x} [/b] [red] \x1b]0;t\x07")) == [1, 2]
    assert "{x} [/b] [red]" in out.getvalue()
    assert "\x1b]0" not in out.getvalue()
    assert isinstance(terminal, Console)


def test_a_reader_that_leaves_ends_a_command_in_silence() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as file, pytest.raises(SystemExit) as stop:
        type(cli_progress.notes)(file=file).print("words")
    assert stop.value.code == 128 + signal.SIGPIPE


def child(code: str, **streams: object) -> subprocess.CompletedProcess[bytes]:
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.run([sys.executable, "-c", code], check=False, timeout=120, **how)  # type: ignore[call-overload]


def test_ctrl_c_during_imports_is_silent() -> None:
    done = child("""
import os, runpy, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "typer": os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
runpy.run_module("hpunet", run_name="__main__")
""")
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no device that is always full")
def test_a_full_disk_behind_the_output_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        code = "import sys\nfrom hpunet.cli.main import main\nsys.argv[1:] = ['--version']\nmain()"
        done = child(code, stdout=full)
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: ")
    assert done.stderr.count(b"\n") == 1


def test_a_closed_output_is_never_the_next_file(tmp_path: Path) -> None:
    code = f"""
import os, sys
os.close(1)
from hpunet.cli.main import main
sys.argv[1:] = ["--version"]
try: main()
except SystemExit: pass
with open({str(tmp_path / "x")!r}, "w") as file: sys.exit(file.fileno())
"""
    assert child(code).returncode > 2
