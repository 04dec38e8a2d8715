"""Settings of the process that make training and sampling faster on CPUs."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # names of these options in the C library's mallopt


def keep_freed_memory() -> bool:
    """Have the C library keep the memory of freed tensors for the next ones; True where it can (glibc).

    Feature maps of a few megabytes are otherwise given back to the system and taken anew in every layer, page by
    page. It holds for the whole process, which then stays as large as it ever was: for programs that train or
    evaluate, not for libraries.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, 2**30) and mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
