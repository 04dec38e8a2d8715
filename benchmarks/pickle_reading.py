"""The pickle of LIDC crops: time and memory to open one of 128×128 crops, beside Python's own unpickler.

    python benchmarks/pickle_reading.py [--crops 3000]

Each reads in a process of its own (Linux). The file is made for this and deleted; the usual one has 15,096 crops.
"""

import argparse
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

WAYS = {
    "pickle.load (unsafe)": "import pickle; found = pickle.load(open(path, 'rb'))",
    "hpunet, all crops of it": "from hpunet.data.lidc.pickled import _read; found = _read(Path(path))",
}
_TIMED = """
import sys, time
from pathlib import Path
import numpy as np
path = sys.argv[1]
{imports}
peak = lambda: 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
before, start = peak(), time.process_time()
{read}
print(time.process_time() - start, peak() - before)
"""


def main() -> None:
    """Print processor seconds and the peak of memory of each way, as multiples of the file's size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crops", type=int, default=3000)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    crops = {
        f"crop{number}": {
            "image": rng.random((128, 128), dtype=np.float32),
            "masks": [(rng.random((128, 128)) > 0.98).astype(np.uint8) for _ in range(4)],
            "series_uid": f"1.3.6.1.4.1.{number // 15}",
        }
        for number in range(options.crops)
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data_lidc.pickle"
        path.write_bytes(pickle.dumps(crops, 4))
        size = path.stat().st_size
        print(f"{options.crops} crops, {size / 1e6:.0f} MB")
        for name, words in WAYS.items():
            imports, read = words.split("; ")
            code = _TIMED.format(imports=imports, read=read)
            command = [sys.executable, "-c", code, str(path)]
            found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            seconds, memory = map(float, found)
            print(f"{name:24} {seconds:6.2f} s   {memory / size:.2f} times the file's size at the peak")


if __name__ == "__main__":
    main()
