"""How the C library hands out memory."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h


def keep_freed_memory() -> bool:
    """Have glibc keep freed memory for the next step, some 4 % off a step on a CPU; whether it does.

    By default it returns large blocks to the system, which then has to clear every page of them again. For the whole
    process, so commands do this, not the import. Other C libraries are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, TypeError, OSError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, 2**30) and mallopt(_TRIM_THRESHOLD, 2**31 - 1))
