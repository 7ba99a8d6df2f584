"""The encoder: a checkpoint that turns texts into vectors. Knows nothing of training, tasks or scores."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from mirror.common.cli import at_least
from mirror.common.errors import InputError, library_errors
from mirror.common.vectors import top_k, unit_length
from mirror.modeling.backbone import MAXIMUM_UNKNOWN, load_backbone, pad_right, position_limit, unknown_share
from mirror.modeling.cpu_kernels import TYPICAL_ROWS, keep_freed_memory, packed_linear, packed_types
from mirror.modeling.packing import NEED_PADDING, ROW_LENGTHS, shared_forward, shared_row, takes_shared_rows
from mirror.modeling.pooling import POOLING_MODES, pool, without_first
from mirror.modeling.read_checkpoint import (
    ROLES,
    check_direction,
    checkpoint_settings,
    choose_prompt,
    loading,
    warn_of_similarity,
)
from mirror.modeling.static import StaticModel


logger = logging.getLogger(__name__)

Encode = Callable[[Sequence[str]], np.ndarray]  # N texts to (N, D) float32
DEFAULT_MAX_SEQ_LENGTH = 128
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Encoder:
    """A tokenizer, a model, a pooling, and any modules that a sentence-transformers checkpoint applies after pooling.

    >>> encoder = Encoder.from_pretrained("out/mirror")
    >>> encoder.encode(["a text", "another"]).shape
    (2, 768)
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        pooling: str,
        max_seq_length: int = DEFAULT_MAX_SEQ_LENGTH,
        head: Sequence[nn.Module] = (),
        prompt: str = "",
        truncate_dim: int | None = None,
        role_prompts: dict[str, str] | None = None,
        include_prompt: bool = True,
    ):
        if pooling not in POOLING_MODES:
            raise InputError(f"unknown pooling '{pooling}'; one of {', '.join(POOLING_MODES)}")
        pad_right(tokenizer)
        self.model, self.tokenizer, self.pooling = model, tokenizer, pooling
        self.max_seq_length, self.prompt, self.truncate_dim = max_seq_length, prompt, truncate_dim
        self.role_prompts = role_prompts or dict.fromkeys(ROLES, prompt)
        self.include_prompt = include_prompt
        self.head = nn.Sequential(*head).to(model.device).eval()
        self._lacks_embeddings = len(tokenizer) > (getattr(model.config, "vocab_size", None) or len(tokenizer))
        self._warned = False
        self._shares_rows: list[bool] = []  # the answer, once it was tried; one list for the copies of `for_role`

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str,
        pooling: str | None = None,
        max_seq_length: int | None = None,
        dtype: str = "float32",
        device: str | torch.device | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        truncate_dim: int | None = None,
    ) -> Encoder:
        """Load a checkpoint of this project, a sentence-transformers one, or any language model, from a folder or the Hub.

        Args:
            pooling: overrides the checkpoint's. Required if the checkpoint states none.
            max_seq_length: tokens, special ones included. Overrides the checkpoint's.
            dtype: dtype of the weights and the forward pass: float32, bfloat16 or float16.
            device: default: the accelerator, if there is one.
            prompt: text before every text, queries and documents too. "": none. Default: the checkpoint's default prompt,
                and for `encode_query` and `encode_document` its prompts of these names.
            prompt_name: name of a prompt of the checkpoint, such as "query", to use instead.
            truncate_dim: number of dimensions to keep of each vector. Default: the checkpoint's.

        Raises:
            InputError: the model cannot be loaded, states no pooling or one that it cannot have, or has fewer dimensions than `truncate_dim`.
        """
        if dtype not in DTYPES:
            raise InputError(f"unknown dtype '{dtype}'; one of {', '.join(DTYPES)}")
        if max_seq_length is not None and max_seq_length < 3:
            raise InputError(f"--max_seq_length {max_seq_length}: two special tokens and a word need 3; give more")
        known = checkpoint_settings(name_or_path)
        if pooling and known.get("pooling") and pooling != known["pooling"]:
            logger.warning("%s says pooling '%s'; using '%s' as asked", name_or_path, known["pooling"], pooling)
        pooling = pooling or known.get("pooling")
        if pooling is None:
            reason = f"{name_or_path} is a plain masked LM or decoder and does not say how to pool"
            without = "a command without that flag needs an encoder, which mirror-train makes of it"
            raise InputError(f"{reason}; pass --pooling with one of {', '.join(POOLING_MODES)}; {without}")
        warn_of_similarity(name_or_path, known)
        model, tokenizer = load_backbone(name_or_path, pooling, DTYPES[dtype])
        check_direction(model.config, pooling, name_or_path)
        device = device or (torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu")
        head = [module.to(DTYPES[dtype]) for module in known.get("head", ())]
        length = max_seq_length or known.get("max_seq_length") or DEFAULT_MAX_SEQ_LENGTH
        of_roles = known.get("role_prompts") if prompt is None and prompt_name is None else None
        prompt = choose_prompt(name_or_path, known, prompt, prompt_name)
        length = min(length, position_limit(model))
        kept, is_pooled = truncate_dim or known.get("truncate_dim"), known.get("include_prompt", True)
        encoder = cls(model.to(device).eval(), tokenizer, pooling, length, head, prompt, kept, of_roles, is_pooled)
        if truncate_dim and (width := encoder.dimension) < truncate_dim:
            raise InputError(f"--truncate_dim {truncate_dim}: the vectors of {name_or_path} have {width} dimensions")
        encoder.check(name_or_path)
        return encoder

    def check(self, name_or_path: str) -> None:
        """Encode one word. Raise an `InputError` if tokenizer, model and modules do not fit together."""
        with loading(name_or_path), torch.no_grad():
            shape = tuple(self.forward(self.tokenize(["a"])).shape)
            if shape != (1, self.dimension):
                raise ValueError(f"the vector of a text has the shape {shape}, not (1, {self.dimension})")

    @torch.inference_mode()
    def encode(self, texts: Iterable[str], batch_size: int = 64, show_progress: bool | None = None) -> np.ndarray:
        """Return the vectors of `texts`, (N, D) float32. Each distinct text is encoded once, in batches by length.

        Args:
            texts: N strings: a list, tuple, generator, array or pandas Series. A special token in them, such as "[MASK]",
                is that token, as in other libraries.
            show_progress: whether to show a progress bar on stderr. Default: only for a long list on a terminal.

        Raises:
            InputError: a vector is not finite (names the first such text), `batch_size` is below 1, or `texts` is one
                string, a table, or has an item that is not a string (names its index).
        """
        at_least(1)("batch_size", batch_size)
        texts = list_of_texts(texts)
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        return deduplicated(lambda unique: self._encode_unique(unique, batch_size, show_progress))(texts)

    def encode_query(self, texts: Iterable[str], **options) -> np.ndarray:
        """Return the vectors of queries, (N, D) float32, as `encode_query` of sentence-transformers.

        The prompt is the checkpoint's prompt "query" and never its default prompt. `options` are those of `encode`.
        """
        return self.for_role("query").encode(texts, **options)

    def encode_document(self, texts: Iterable[str], **options) -> np.ndarray:
        """Return the vectors of the texts that queries search, with the checkpoint's prompt "document" (`encode_query`)."""
        return self.for_role("document").encode(texts, **options)

    def for_role(self, role: str) -> Encoder:
        """Return an encoder with the same weights and the prompt of a role, "query" or "document"."""
        other = copy(self)
        other.prompt = self.role_prompts[role]
        return other

    def by_role(self, wrap: Callable[[Encoder], Encode] = lambda encoder: encoder.encode) -> EncodeByRole:
        """Return what `wrap` makes of this encoder for each role. Roles with the same prompt share one function."""
        made = {self.prompt: wrap(self)}
        for role, prompt in self.role_prompts.items():
            if prompt not in made:
                made[prompt] = wrap(self.for_role(role))
        return EncodeByRole(made[self.prompt], *(made[self.role_prompts[role]] for role in ROLES))

    def _encode_unique(self, texts: Sequence[str], batch_size: int, show_progress: bool | None) -> np.ndarray:
        ids = self.tokenize(texts)
        if not self._warned and (share := unknown_share(ids, self.tokenizer)) > MAXIMUM_UNKNOWN:
            self._warned = True
            logger.warning("%.0f%% of the tokens are unknown to the tokenizer: these vectors mean little", 100 * share)
        # Longest first, so that too large a batch fails immediately.
        order = sorted(range(len(texts)), key=lambda row: -len(ids[row]))
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        disable = (None if len(texts) > 2000 else True) if show_progress is None else not show_progress
        is_long = len(texts) > batch_size  # long enough to reorder the weights for
        if is_long and not self._shares_rows:
            keep_freed_memory(self.model.device)
            faster = getattr(self.model, "dtype", None) == torch.bfloat16 and torch.cpu._is_amx_tile_supported()
            self._shares_rows.append(faster and self.pooling not in NEED_PADDING and takes_shared_rows(self.model))
        layers = packed_linear(self.model, packed_types() if is_long else ())
        start, shared = 0, is_long and self._shares_rows[0]
        with layers, tqdm(total=len(texts), desc="encoding", unit="text", leave=False, disable=disable) as bar:
            while start < len(order):
                longest = len(ids[order[start]])
                count, width = shared_row(max(1, longest))
                size = count * TYPICAL_ROWS // width if shared and width in ROW_LENGTHS else batch_size
                rows = order[start : start + size]
                vectors[rows] = self.forward([ids[row] for row in rows], shared and longest > 0).float().cpu().numpy()
                start += size
                bar.update(len(rows))
        bad = ~np.isfinite(vectors).all(axis=1)
        if bad.any():
            what = f"{bad.sum()} of {len(texts)} vectors are not finite, first for {texts[bad.argmax()][:80]!r}"
            raise InputError(f"{what}; try --dtype float32")
        return vectors

    def similarity(self, first: Sequence[str], second: Sequence[str]) -> np.ndarray:
        """Return the cosine of every text of one list with every text of another, (N, M) float32.

        >>> encoder.similarity(["a cat"], ["a kitten", "a train"])
        """
        return unit_length(self.encode(first)) @ unit_length(self.encode(second)).T

    def search(self, queries: Sequence[str], texts: Sequence[str], k: int = 10) -> list[list[tuple[str, float]]]:
        """Return the `k` texts with the highest cosine for each query, best first, as (text, cosine).

        >>> encoder.search(["how to open a file"], ["Open a file.", "Close a socket."], k=1)

        For many calls over the same texts, encode them once and use `mirror.common.vectors.top_k`.
        """
        texts = list_of_texts(texts)
        scores, rows = top_k(unit_length(self.encode_query(queries)), unit_length(self.encode_document(texts)), k)
        pairs = (zip(*found, strict=True) for found in zip(rows, scores, strict=True))
        return [[(texts[row], float(score)) for row, score in found] for found in pairs]

    @property
    def dimension(self) -> int:
        """The width D of the vectors."""
        widths = [module.out_features for module in self.head if hasattr(module, "out_features")]
        width = widths[-1] if widths else self.model.config.hidden_size
        return min(width, self.truncate_dim or width)

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text after the prompt, special ones included, cut at `max_seq_length`, not padded."""
        prompted = [self.prompt + text for text in texts]
        tokenizer, options = self.tokenizer, {"truncation": True, "max_length": self.max_seq_length}
        with library_errors(f"{tokenizer.name_or_path}: its tokenizer fails on these texts"):
            ids = tokenizer(prompted[:1], **options)["input_ids"]  # sets the options of its backend too
            backend = tokenizer.backend_tokenizer if isinstance(tokenizer, PreTrainedTokenizerFast) else None
            fast = backend and [text.ids for text in backend.encode_batch_fast(prompted)]  # no offsets: half the time
            ids = fast if fast and fast[:1] == ids else tokenizer(prompted, **options)["input_ids"]
        if self._lacks_embeddings:
            for row, text in zip(ids, texts, strict=True):
                if max(row, default=0) >= self.model.config.vocab_size:
                    token = self.tokenizer.convert_ids_to_tokens(max(row))
                    what = f"the model has no embedding for the token {token!r} in {text[:80]!r}"
                    raise InputError(f"{what}; remove it from the text")
        return ids

    def forward(self, ids: list[list[int]], shared: bool = False) -> Tensor:
        """Return the vectors of B texts from `tokenize`, padded or in `shared` rows, (B, D) in the model's dtype. Differentiable."""
        if isinstance(self.model, StaticModel):
            return self._after_pooling(self.model.means(ids))
        padding = {"padding": "max_length", "max_length": self.max_seq_length} if self.pooling == "mean_padded" else {}
        batch = self.tokenizer.pad({"input_ids": ids}, return_tensors="pt", **padding).to(self.model.device)
        mask = batch["attention_mask"]
        if shared:
            output, mask = shared_forward(self.model, batch["input_ids"], mask, self.pooling)
        else:
            output = self.model(**batch, output_hidden_states=self.pooling == "first_last_mean")
        if self.prompt and not self.include_prompt and self.pooling != "pooler":
            count = prompt_tokens(self.tokenizer, self.prompt, self.max_seq_length)
            output, mask = without_first(output, mask, torch.full((len(mask),), count, device=mask.device))
        return self._after_pooling(pool(output, mask, self.pooling))

    def _after_pooling(self, vectors: Tensor) -> Tensor:
        """Return pooled vectors after the modules of the checkpoint, cut to `truncate_dim`."""
        vectors = self.head({"sentence_embedding": vectors})["sentence_embedding"] if len(self.head) else vectors
        return vectors[:, : self.truncate_dim]


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, prompt: str, max_seq_length: int) -> int:
    """Return how many tokens at the beginning of a text are its prompt's, as sentence-transformers counts them."""
    (ids,) = tokenizer([prompt], truncation=True, max_length=max_seq_length)["input_ids"]
    return len(ids) - (ids[-1] in tokenizer.all_special_ids)


@dataclass(frozen=True)
class EncodeByRole:
    """An `Encode` that also knows how to encode queries and documents."""

    plain: Encode
    query: Encode
    document: Encode

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of texts that are neither queries nor documents, (N, D)."""
        return self.plain(texts)


def encode_sides(encode: Encode, queries: Sequence[str], documents: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors of queries, (Q, D), and documents, (N, D), each with its prompt where `encode` has one."""
    query, document = getattr(encode, "query", encode), getattr(encode, "document", encode)
    if query is not document:
        return query(queries), document(documents)
    vectors = query([*queries, *documents])  # in one call, so that a text on both sides is encoded once
    return vectors[: len(queries)], vectors[len(queries) :]


def list_of_texts(texts: Iterable[str]) -> list[str]:
    """Return texts in any container as a list. Raise an `InputError` for what would be read as other texts than meant."""
    if isinstance(texts, str | bytes):
        raise InputError(f"give a list of texts, not one string: [{texts[:80]!r}]")
    if not isinstance(texts, Iterable):
        raise InputError(f"give a list of texts, not {texts!r:.80}")
    if hasattr(texts, "columns") or isinstance(texts, Mapping):  # iterating would give the names of the columns
        name = next(iter(texts), "text")
        raise InputError(f"give the texts of one column, not a table: texts[{name!r}]")
    if getattr(texts, "ndim", 1) != 1:
        raise InputError(f"give an array of one dimension, not of the shape {texts.shape}")
    rows = list(texts)
    for index, text in enumerate(rows):
        if not isinstance(text, str):
            what = "None" if text is None else f"{text!r:.80} ({type(text).__name__})"
            raise InputError(f"the text at index {index} is {what}, not a string; drop it or convert it with str()")
    return rows


def deduplicated(encode: Encode) -> Encode:
    """Return a function that calls `encode` for each distinct text once and returns the vectors of all texts in order."""

    def encode_all(texts: Sequence[str]) -> np.ndarray:
        row_of: dict[str, int] = {}
        rows = [row_of.setdefault(text, len(row_of)) for text in texts]
        vectors = encode(list(row_of))
        return vectors if len(row_of) == len(texts) else vectors[rows]

    return encode_all
