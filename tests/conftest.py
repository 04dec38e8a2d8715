"""Shape annotations are checked while the tests run (and never in production)."""

import os

from jaxtyping import install_import_hook

# Before anything imports the package. Types are checked by beartype, shapes by jaxtyping.
_hook = install_import_hook("hpunet", "beartype.beartype")
_hook.__enter__()

# Two cores are what continuous integration has; more threads on tiny tensors only cost time.
os.environ.setdefault("OMP_NUM_THREADS", "2")
