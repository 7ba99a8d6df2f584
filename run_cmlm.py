"""Turn a masked language model into a sentence encoder by conditional masked language modeling (CMLM).

`python run_cmlm.py --help` explains it. The code is in mirror/tools/train_cmlm.py.
"""

from mirror.common.errors import run_main
from mirror.tools.train_cmlm import main


if __name__ == "__main__":
    run_main(main)
