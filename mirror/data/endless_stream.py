"""A stream that is trained on for a number of steps: what a step sees is a function of its number."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from datasets import IterableDataset
from torch.utils.data import IterableDataset as TorchIterableDataset
from torch.utils.data import get_worker_info


class EndlessStream(TorchIterableDataset):
    """A stream again and again, each time in another order, in whole batches; what is left of a pass is dropped.

    Every worker of the data loader reads the whole stream and makes those batches that the loader will ask it for, so their
    number changes nothing. Trainer sees one epoch without an end, so that its count of steps says where to resume.

    Args:
        stream: the rows as they are stored.
        batch_size: rows of all processes in one step.
        buffer_size: rows among which the next one is drawn.
    """

    def __init__(self, stream: IterableDataset, seed: int, batch_size: int, buffer_size: int = 10_000):
        self.stream, self.seed, self.batch_size, self.buffer_size = stream, seed, batch_size, buffer_size

    def make_rows(self, batch: dict[str, list], epoch: int, place: int, number: int) -> Iterable[dict]:
        """The rows of one batch.

        Args:
            batch: the stored rows, by column.
            epoch: passes before this one.
            place, number: batches before this one, in this pass and in all.
        """
        raise NotImplementedError

    def __iter__(self) -> Iterator[dict]:
        worker = get_worker_info()
        own, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        number = 0
        for epoch in itertools.count():
            rows = self.stream.shuffle(seed=self.seed + epoch, buffer_size=self.buffer_size)
            # `iter` of a `datasets` stream is the same in every worker; plain iteration would share out its files.
            for place, batch in enumerate(rows.iter(self.batch_size, drop_last_batch=True)):
                if number % workers == own:
                    yield from self.make_rows(batch, epoch, place, number)
                number += 1
