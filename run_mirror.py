"""Turn a masked language model into a text encoder, without labels (Mirror-BERT).

`python run_mirror.py --help` explains it. The code is in mirror/tools/train.py.
"""

from mirror.common.errors import run_main
from mirror.tools.train import main


if __name__ == "__main__":
    run_main(main)
