"""Score one or several encoders on the tasks of the Mirror-BERT and CMLM papers, offline.

`python run_eval.py --help` explains it. The code is in mirror/tools/evaluate.py.
"""

from mirror.common.errors import run_main
from mirror.tools.evaluate import main


if __name__ == "__main__":
    run_main(main)
