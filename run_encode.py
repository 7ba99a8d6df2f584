"""Encode a corpus of any size into parquet shards, one embedding per row of the input.

`python run_encode.py --help` explains it. The code is in mirror/tools/encode.py.
"""

from mirror.common.errors import run_main
from mirror.tools.encode import main


if __name__ == "__main__":
    run_main(main)
