"""Entry point of the `hpunet` command. Ctrl-C while modules are imported ends it quietly."""

import os
import signal
from types import FrameType

from hpunet.utils.cores import limit_threads


def main() -> None:
    """Import the commands and run one."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nohup ignores it: so do we
        signal.signal(signal.SIGINT, leave)
    limit_threads()  # before torch is imported
    from hpunet.cli.main import main as run

    run()


def leave(_number: int, _frame: FrameType | None) -> None:
    """End at once, with the exit code of Ctrl-C: an exception within an import would be a traceback, or be lost."""
    os._exit(130)


def raise_again() -> None:
    """From here on Ctrl-C is a KeyboardInterrupt, so that commands can say what is kept."""
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
