"""Shape annotations are checked while the tests run (and never in production); tests for GPUs need one."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

# Before anything imports the package. Types are checked by beartype, shapes by jaxtyping.
# Not in what Triton compiles: that is not Python.
_root = Path(next(iter(find_spec("hpunet").submodule_search_locations)))  # type: ignore[union-attr,arg-type]
_modules = {".".join(("hpunet", *path.relative_to(_root).with_suffix("").parts)) for path in _root.rglob("*.py")}
_compiled = {name for name in _modules if name.startswith("hpunet.kernels.triton_")}
assert _compiled
_hook = install_import_hook(sorted(_modules - _compiled), "beartype.beartype")
_hook.__enter__()

# On tiny tensors a second thread only costs time, and waits for the first where cores are busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
