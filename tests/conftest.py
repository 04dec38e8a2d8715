"""Shape annotations are checked while the tests run (and never in production)."""

import os

from jaxtyping import install_import_hook

# Before anything imports the package. Types are checked by beartype, shapes by jaxtyping.
_hook = install_import_hook("hpunet", "beartype.beartype")
_hook.__enter__()

# On tiny tensors a second thread only costs time, and waits for the first where cores are busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")
