"""Finish the current step, save and exit on SIGTERM, Ctrl-C, SIGHUP or SIGUSR1 (Slurm's warning)."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable

import torch
import torch.distributed as dist
from transformers import TrainerCallback

from mirror.common.distributed import exit_process, world_size


logger = logging.getLogger(__name__)

SIGNALS = tuple(signal.Signals[name] for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1") if hasattr(signal, name))


class StopOnSignal(TrainerCallback):
    """Save a checkpoint after the current step, then exit with 128 + the number of the signal, as a shell reports it.

    The processes of a run receive a signal at different steps, so after each step they agree whether any of them has.
    Before the first step there is nothing to save, and signals do what they do elsewhere.
    """

    def __init__(self):
        self.received = self.agreed = 0
        self.previous: dict[int, object] = {}
        # One tensor for the whole run. A new one at each step would be freed by gloo's thread, which needs the
        # interpreter's lock; at the end of the run the interpreter holds it while it waits for that thread.
        self.flag: torch.Tensor | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        self.received = self.agreed = 0
        self.flag = torch.zeros((), dtype=torch.int32, device=args.device)

    def on_step_begin(self, args, state, control, **kwargs):
        if self.previous or threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            # Ignored: nohup, and the background jobs of a shell. None: a handler that Python does not know.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self.previous[number] = signal.signal(number, self._request)

    def on_step_end(self, args, state, control, **kwargs):
        self.agreed = self.received
        if world_size() > 1:
            self.flag.fill_(self.received)
            dist.all_reduce(self.flag, op=dist.ReduceOp.MAX)
            self.agreed = int(self.flag)
        control.should_save = control.should_save or bool(self.agreed)

    def on_save(self, args, state, control, **kwargs):
        if not self.agreed:
            return
        self.restore()
        if state.is_world_process_zero:
            name, step, last = signal.Signals(self.agreed).name, state.global_step, state.max_steps
            advice = "continue with the same command and --resume_from_checkpoint true"
            logger.warning("stopped by %s after step %d of %d, which is saved; %s", name, step, last, advice)
        exit_process(128 + self.agreed)

    def restore(self) -> None:
        """Give the signals back to whoever had them."""
        while self.previous:
            signal.signal(*self.previous.popitem())

    def _request(self, number: int, frame) -> None:
        if not self.received:  # a step can take long; logging is not safe in a signal handler
            name = signal.Signals(number).name
            os.write(2, f"\n{name}: finishing this step and saving, then the run ends\n".encode())
        self.received = number


def outlast_signals(then: Callable[[int], None] | None, worker: int) -> None:
    """Ignore signals in a worker of the data loader, which the run needs for its step. A second SIGTERM ends it."""
    for number in SIGNALS[1:]:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    if then is not None:
        then(worker)
