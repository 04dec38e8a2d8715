"""Logs are read while a run still writes them."""

import threading
from pathlib import Path

from hpunet.training.loggers import JsonLines, read_log


def test_log_that_grows_is_read(tmp_path: Path) -> None:
    log, stop = JsonLines(tmp_path / "log.jsonl", last_step=0), threading.Event()

    def write() -> None:
        step = 0
        while not stop.wait(1e-4):
            log.numbers(step := step + 1, {"loss": 0.5})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(100):
            steps = [line["step"] for line in read_log(tmp_path / "log.jsonl", strict=True)]
            assert steps == list(range(1, len(steps) + 1))
    finally:
        stop.set()
        writer.join()
        log.close()
