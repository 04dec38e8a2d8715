"""Shape annotations are checked while the tests run (and never in production); tests for GPUs need one."""

import os

import pytest
from jaxtyping import install_import_hook

# Before anything imports the package. Types are checked by beartype, shapes by jaxtyping.
_hook = install_import_hook("hpunet", "beartype.beartype")
_hook.__enter__()

# On tiny tensors a second thread only costs time, and waits for the first where cores are busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
