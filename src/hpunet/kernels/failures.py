"""Names what compilers and launches of kernels raise; needs no Triton."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hpunet.errors import ConfigError


@contextmanager
def failures_named() -> Iterator[None]:
    """Turn whatever a compiler or a launch raises into a `ConfigError`, but for a lack of memory."""
    try:
        yield
    except (ConfigError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), "")
        raise ConfigError(f"fused kernels failed here: {type(error).__name__}: {first}") from error
