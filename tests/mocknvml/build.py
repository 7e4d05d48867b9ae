"""Builds the mock of libnvidia-ml.so.1; see nvml.c for what it can do."""

import subprocess
from pathlib import Path


def build_mock_nvml(folder: Path) -> Path:
    """Compile the mock into a folder, for use as LD_LIBRARY_PATH; gives the library's path."""
    library = folder / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml.c")
    flags = "-std=c11 -D_DEFAULT_SOURCE -Wall -Wextra -Werror -O1 -shared -fPIC -Wl,-soname,libnvidia-ml.so.1"
    subprocess.run(["cc", *flags.split(), "-o", str(library), str(source)], check=True)
    return library
