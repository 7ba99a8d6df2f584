"""What each of two processes runs in the tests of FSDP: `run_mirror.py` with weights spread over the processes, on gloo.

accelerate sets FSDP up on accelerators only; on a CPU it trains with full copies, and says nothing. So processes on a CPU are
reported to it as processes on GPUs here. All that follows is the code of torch, accelerate, transformers and this project.
"""

from __future__ import annotations

from accelerate import PartialState
from accelerate.utils import DistributedType

import run_mirror
from mirror.common.errors import run_main


def as_on_gpus(initialise):
    def wrapper(self, *args, **kwargs):
        initialise(self, *args, **kwargs)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU

    return wrapper


if __name__ == "__main__":
    PartialState.__init__ = as_on_gpus(PartialState.__init__)
    run_main(run_mirror.main)
