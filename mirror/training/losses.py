"""Contrastive losses: `info_nce` and `multi_similarity` as functions of embeddings, and the modules that
`MirrorTrainer(loss=...)` takes.

A loss is a function or an `nn.Module` that is called with the two views of a step and returns a scalar to minimize:

    loss(first, second)                                              # (B, D) each; row i belongs to row i of the other
    loss(first, second, all_first=..., all_second=..., offset=...)   # with gather_negatives: (N, D) of all processes

    loss(first, second, false_negatives=...)    # of pairs: (2B, 2B) or (2B, 2N) booleans

`all_first` and `all_second` hold the views of all processes, gathered with gradient, and `offset` is where this process's rows
start in them. `false_negatives` are the texts, first ones before second ones, that are no negatives of each anchor
(`mirror.data.batches`), for losses that take it. A loss of your own can ignore them (`**gathered`) as long as `gather_negatives`
is off. Parameters and buffers of a module are stored in the checkpoints of a run, never in the saved encoder. The functions
normalize the vectors, compute in float32 (in float64 if that comes in), and return the mean over the anchors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mirror.common.cli import above, at_least, one_of
from mirror.common.errors import InputError
from mirror.common.vectors import unit_tensor
from mirror.training.options import LOSSES


if TYPE_CHECKING:
    from mirror.training.config import MirrorConfig

LossFunction = Callable[..., Tensor]
INITIAL_STD = 0.02  # of a projection head's weights: BERT's, as in SimCSE's code


def info_nce(
    first: Tensor,
    second: Tensor,
    temperature: float | Tensor,
    form: str = "nt_xent",
    all_first: Tensor | None = None,
    all_second: Tensor | None = None,
    offset: int = 0,
    hardness: float | None = None,
    false_negatives: Tensor | None = None,
) -> Tensor:
    """InfoNCE in one of three named forms.

    - `nt_xent` (the released code; SimCLR): every one of the 2B views is an anchor, its positive is the other view of
      the same text, and the denominator runs over all other views, the positive included.
    - `decoupled` (Eq. (1) of the paper, which prints one view): the same anchors, the denominator runs over the negatives only.
    - `one_way` (SimCSE): the first views are the anchors and the second views the candidates.

    Args:
        first, second: (B, D), the views of this process's rows; row i of one is the positive of row i of the other.
        temperature: tau > 0; the logits are cosines divided by it.
        all_first, all_second: (N, D), the views of all processes, gathered with gradient; by default this process's.
        offset: where this process's rows start in them.
        hardness: a negative's logit gets its cosine times this, as a constant (Lan et al. 2025, Eq. 5; in
            sentence-transformers `hardness_strength`, in the mode `all_negatives`).
        false_negatives: (2B, 2N), which views of all are left out for each view of this process.

    Returns:
        Scalar float32 (float64 of float64 vectors). `decoupled` can be negative.
    """
    if not isinstance(temperature, Tensor):
        InfoNCE(temperature, form, hardness)  # checks them
    with torch.autocast(first.device.type, enabled=False):
        first, second = unit_tensor(first), unit_tensor(second)
        all_first = first if all_first is None else unit_tensor(all_first)
        all_second = second if all_second is None else unit_tensor(all_second)
        rows = torch.arange(offset, offset + len(first), device=first.device)  # (B,) of the N
        if form == "one_way":
            anchors, candidates, positive = first, [all_second], rows
        else:
            anchors, candidates = torch.cat([first, second]), [all_first, all_second]
            positive = torch.cat([rows + len(all_first), rows])  # (A,)
        cosines = anchors @ torch.cat(candidates).T  # (A, C): B or 2B anchors, N or 2N candidates
        logits = cosines / temperature
        if hardness is not None:
            logits = logits + (hardness * cosines.detach()).scatter(1, positive[:, None], 0.0)
        if false_negatives is not None:
            left_out = false_negatives[: len(first), len(all_first) :] if form == "one_way" else false_negatives
            logits = logits.masked_fill(left_out.scatter(1, positive[:, None], False), float("-inf"))
        if form == "one_way":
            return F.cross_entropy(logits, positive)

        own = torch.cat([rows, rows + len(all_first)])  # (2B,)
        logits = logits.scatter(1, own[:, None], float("-inf"))
        if form == "nt_xent":
            return F.cross_entropy(logits, positive)
        positives = logits.gather(1, positive[:, None]).squeeze(1)  # (2B,)
        without_positive = logits.scatter(1, positive[:, None], float("-inf"))
        if false_negatives is not None:  # an anchor may have no negative left
            has_negatives = without_positive.isfinite().any(dim=1)[:, None]
            without_positive = without_positive.where(has_negatives, positives[:, None])
        return (without_positive.logsumexp(dim=1) - positives).mean()


def multi_similarity(
    first: Tensor,
    second: Tensor,
    all_first: Tensor | None = None,
    all_second: Tensor | None = None,
    offset: int = 0,
    false_negatives: Tensor | None = None,
) -> Tensor:
    """Multi-similarity loss on hard triplets, as in SapBERT (Liu et al. 2021; Mirror-BERT, footnote 2), from the library.

    Only the triplets count in which the positive is not closer than the negative by the margin; an anchor without any
    counts as 0. A batch with exactly one such triplet counts as 0 too, because the library takes index lists of length 1
    for empty ones. All numbers are those of SapBERT's released code. The miner compares all triplets of the 2N views at
    once, in some (2N)^3 bytes, while that is under 2^31, and otherwise one anchor at a time, slowly.
    """
    # A second of imports that the other losses do not need.
    from pytorch_metric_learning.losses import MultiSimilarityLoss
    from pytorch_metric_learning.miners import TripletMarginMiner

    with torch.autocast(first.device.type, enabled=False):
        all_first = first if all_first is None else all_first
        all_second = second if all_second is None else all_second
        anchors = torch.cat([first, second]).float()  # (2B, D)
        candidates = torch.cat([all_first, all_second]).float()  # (2N, D)
        total = len(all_first)
        labels = torch.arange(total, device=first.device).repeat(2)  # (2N,)
        rows = torch.arange(offset, offset + len(first), device=first.device)
        own = torch.cat([rows, rows + total])  # (2B,) positions of the anchors among the candidates

        # Mined among all candidates, where the library knows that a view is not its own positive.
        anchor, positive, negative = TripletMarginMiner(margin=0.2, type_of_triplets="all")(candidates, labels)
        place = torch.full_like(labels, -1).scatter(0, own, torch.arange(len(own), device=first.device))
        mine = place[anchor] >= 0
        if false_negatives is not None:
            mine &= ~false_negatives[place[anchor], negative]
        triplets = (place[anchor[mine]], positive[mine], negative[mine])
        loss = MultiSimilarityLoss(alpha=1, beta=60, base=0.5)
        value = loss(anchors, indices_tuple=triplets, ref_emb=candidates)
        # Without a triplet the library's loss does not depend on the candidates, and this process would skip the
        # backward pass of their gathering, in which the others wait for it.
        return value + 0.0 * candidates.sum()


class InfoNCE(nn.Module):
    """`info_nce` with fixed settings: `MirrorTrainer(model, train_dataset=texts, loss=InfoNCE(temperature=0.04))`."""

    FORMS = ("nt_xent", "decoupled", "one_way")

    def __init__(self, temperature: float = 0.04, form: str = "nt_xent", hardness: float | None = None):
        super().__init__()
        above(0, "The paper uses 0.04 or 0.2")("temperature", temperature)
        one_of(self.FORMS)("form", form)
        if hardness is not None:
            at_least(0, "Its source uses 9")("hardness", hardness)
        self.temperature, self.form, self.hardness = temperature, form, hardness

    @classmethod
    def from_config(cls, config: MirrorConfig) -> InfoNCE:
        """Return the loss that the flags describe."""
        return cls(config.temperature, config.loss, config.hardness)

    def forward(self, first: Tensor, second: Tensor, **gathered) -> Tensor:
        return info_nce(first, second, self.temperature, self.form, hardness=self.hardness, **gathered)

    def extra_repr(self) -> str:
        shown = f"temperature={self.temperature:g}, form={self.form}"
        return shown if self.hardness is None else f"{shown}, hardness={self.hardness:g}"


class Matryoshka(nn.Module):
    """Sum of a loss, which normalizes, on whole vectors of `width` dimensions and on their first D, for each of `dims`.

    Kusupati et al. 2022, Eq. 1, with weights 1.
    """

    def __init__(self, loss: LossFunction, dims: Sequence[int], width: int):
        super().__init__()
        if max(dims) >= width:
            have = f"the vectors have {width} dimensions, which are trained anyway"
            raise InputError(f"--matryoshka_dims {max(dims)}: {have}; name numbers below {width}")
        self.loss, self.dims = loss, list(dims)

    def forward(self, first: Tensor, second: Tensor, **gathered) -> Tensor:
        full = self.loss(first, second, **gathered)
        return sum((loss_behind(lambda v, d=d: v[:, :d], self.loss, first, second, gathered) for d in self.dims), full)

    def extra_repr(self) -> str:
        return f"dims={self.dims}"


class ProjectionHead(nn.Module):
    """A linear layer and tanh in front of another loss, in training only (SimCSE, Gao et al. 2021, section 6.3).

    The first weights have a seed of their own: the global random state stays that of a run without a head.
    """

    def __init__(self, loss: LossFunction, width: int, seed: int = 42):
        super().__init__()
        linear = nn.utils.skip_init(nn.Linear, width, width)
        nn.init.normal_(linear.weight, std=INITIAL_STD, generator=torch.Generator().manual_seed(seed))
        nn.init.zeros_(linear.bias)
        self.loss, self.head = loss, nn.Sequential(linear, nn.Tanh())

    def forward(self, first: Tensor, second: Tensor, **gathered) -> Tensor:
        return loss_behind(lambda vectors: self.head(vectors.float()), self.loss, first, second, gathered)


def loss_behind(change: Callable, loss: LossFunction, first: Tensor, second: Tensor, gathered: dict) -> Tensor:
    """Return a loss of changed vectors."""
    vectors = ("all_first", "all_second")
    gathered = {name: change(value) if name in vectors else value for name, value in gathered.items()}
    return loss(change(first), change(second), **gathered)


def takes_false_negatives(loss: LossFunction) -> bool:
    """Return whether a loss has the argument `false_negatives`, or takes any."""
    while isinstance(loss, Matryoshka | ProjectionHead):
        loss = loss.loss
    parameters = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters
    return "false_negatives" in parameters or any(each.kind == each.VAR_KEYWORD for each in parameters.values())


def make_loss(config: MirrorConfig, width: int, loss: LossFunction | None = None) -> LossFunction:
    """Return the loss of a run on vectors of `width` dimensions: `loss` or `--loss`, in what the flags wrap around it."""
    if loss is None:
        module, _, name = LOSSES[config.loss].rpartition(".")
        kind = getattr(import_module(module), name)
        loss = kind.from_config(config) if hasattr(kind, "from_config") else kind
    elif not callable(loss):
        raise InputError(f"loss must be a function or a module, got {type(loss).__name__}; --loss takes names")
    elif given := {"temperature", "hardness"} & {*config.given, *(["hardness"] if config.hardness else [])}:
        raise InputError(f"{min(given)}: the loss that was passed brings its own; leave it out of the configuration")
    if config.matryoshka_dims:
        loss = Matryoshka(loss, config.matryoshka_dims, width)
    return ProjectionHead(loss, width, config.seed) if config.projection_head else loss


def name_of_loss(loss: LossFunction) -> str:
    """Return the name of a loss for records and cards: that of its function or class."""
    return getattr(loss, "__name__", type(loss).__name__)


def describe_loss(loss: LossFunction) -> str:
    """Return a loss with its settings in one line."""
    return " ".join(str(loss).split()) if isinstance(loss, nn.Module) else name_of_loss(loss)
