"""A checkpoint that turns texts into vectors. Knows nothing of training, tasks or scores."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mirror.common import loading_policy
from mirror.common.errors import InputError
from mirror.common.nearest_neighbors import top_k, unit_length
from mirror.modeling.backbone import (
    MAXIMUM_UNKNOWN,
    check_name,
    check_size,
    load_backbone,
    load_config,
    loading,
    position_limit,
    quiet,
    unknown_share,
)
from mirror.modeling.pooling import POOLING_MODES, pool


logger = logging.getLogger(__name__)

Encode = Callable[[Sequence[str]], np.ndarray]  # N texts to (N, D) float32
MIRROR_CONFIG = "mirror_config.json"  # what this project adds to a checkpoint
DEFAULT_MAX_SEQ_LENGTH = 128
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Encoder:
    """Tokenizer, model, pooling, and any modules that a sentence-transformers checkpoint applies after pooling.

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
    ):
        if pooling not in POOLING_MODES:
            raise InputError(f"unknown pooling '{pooling}'; one of {', '.join(POOLING_MODES)}")
        self.model, self.tokenizer, self.pooling = model, tokenizer, pooling
        self.max_seq_length, self.prompt, self.truncate_dim = max_seq_length, prompt, truncate_dim
        self.head = nn.Sequential(*head).to(model.device)
        self._warned = False

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
        """Load a checkpoint of this project, a sentence-transformers one, or any masked LM.

        Args:
            name_or_path: a folder or a Hub id.
            pooling: overrides the checkpoint's; needed where the checkpoint does not say.
            max_seq_length: in tokens, special ones included; overrides the checkpoint's.
            dtype: of the weights and the forward pass: float32, bfloat16 or float16.
            device: by default the accelerator, if there is one.
            prompt: text before every text; "" for none. Default: the checkpoint's default prompt.
            prompt_name: the checkpoint's prompt of this name, such as "query", instead.
            truncate_dim: keep only the first dimensions of each vector; default: as the checkpoint says.

        Raises:
            InputError: nothing that can be loaded, a decoder, no pooling known, or fewer dimensions than `truncate_dim`.
        """
        known = checkpoint_settings(name_or_path)
        if pooling and known.get("pooling") and pooling != known["pooling"]:
            logger.warning("%s says pooling '%s'; using '%s' as asked", name_or_path, known["pooling"], pooling)
        pooling = pooling or known.get("pooling")
        if pooling is None:
            raise InputError(
                f"{name_or_path} is a plain masked LM and does not say how to pool; "
                f"pass --pooling with one of {', '.join(POOLING_MODES)}"
            )
        model, tokenizer = load_backbone(name_or_path, pooling, DTYPES[dtype])
        device = device or (torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu")
        head = [module.to(DTYPES[dtype]) for module in known.get("head", ())]
        length = max_seq_length or known.get("max_seq_length") or DEFAULT_MAX_SEQ_LENGTH
        prompt = choose_prompt(name_or_path, known, prompt, prompt_name)
        length = min(length, position_limit(model))
        kept = truncate_dim or known.get("truncate_dim")
        encoder = cls(model.to(device).eval(), tokenizer, pooling, length, head, prompt, kept)
        if truncate_dim and encoder.dimension < truncate_dim:
            raise InputError(
                f"--truncate_dim {truncate_dim}: the vectors of {name_or_path} have {encoder.dimension} dimensions"
            )
        encoder.check(name_or_path)
        return encoder

    @torch.no_grad()
    def check(self, name_or_path: str) -> None:
        """Encode one word, to see that tokenizer, model and later modules fit together.

        Raises:
            InputError: they do not; the message names the model.
        """
        with loading(name_or_path):
            vector = self.forward(self.tokenize(["a"]))
            if vector.shape != (1, self.dimension):
                raise ValueError(
                    f"the vector of a text has the shape {tuple(vector.shape)}, not (1, {self.dimension})"
                )

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], batch_size: int = 64, show_progress: bool | None = None) -> np.ndarray:
        """Vectors of `texts` in their order; each distinct text is encoded once, in batches of similar length.

        Args:
            texts: N strings; a special token in them, such as "[MASK]", is that token, as in other readers.
            batch_size: rows of one forward pass.
            show_progress: a progress bar on stderr; by default only for a long list on a terminal.

        Returns:
            (N, D) float32.

        Raises:
            InputError: a vector is not finite; names the first such text.
        """
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        return deduplicated(lambda unique: self._encode_unique(unique, batch_size, show_progress))(texts)

    def _encode_unique(self, texts: Sequence[str], batch_size: int, show_progress: bool | None) -> np.ndarray:
        ids = self.tokenize(texts)
        self._warn_of_unknown_tokens(ids)
        # Longest first: too large a batch fails at once.
        order = sorted(range(len(texts)), key=lambda row: -len(ids[row]))
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        disable = (None if len(texts) > 2000 else True) if show_progress is None else not show_progress
        with tqdm(total=len(texts), desc="encoding", unit="text", leave=False, disable=disable) as bar:
            for start in range(0, len(order), batch_size):
                rows = order[start : start + batch_size]
                vectors[rows] = self.forward([ids[row] for row in rows]).float().cpu().numpy()
                bar.update(len(rows))
        _check_finite(vectors, texts)
        return vectors

    def _warn_of_unknown_tokens(self, ids: list[list[int]]) -> None:
        if not self._warned and (share := unknown_share(ids, self.tokenizer)) > MAXIMUM_UNKNOWN:
            logger.warning(
                "%.0f%% of the tokens are unknown to the tokenizer: these embeddings mean little", 100 * share
            )
            self._warned = True

    def similarity(self, first: Sequence[str], second: Sequence[str]) -> np.ndarray:
        """Cosine of every text of one list with every text of another.

        >>> encoder.similarity(["a cat"], ["a kitten", "a train"])

        Returns:
            (N, M) float32.
        """
        return unit_length(self.encode(first)) @ unit_length(self.encode(second)).T

    def search(self, queries: Sequence[str], texts: Sequence[str], k: int = 10) -> list[list[tuple[str, float]]]:
        """The `k` texts with the highest cosine for each query, best first, as (text, cosine).

        >>> encoder.search(["how to open a file"], ["Open a file.", "Close a socket."], k=1)

        For many calls over the same texts, encode them once and use `mirror.common.nearest_neighbors.top_k`.
        """
        scores, rows = top_k(unit_length(self.encode(queries)), unit_length(self.encode(texts)), k)  # (Q, k) each
        return [
            [(texts[row], float(score)) for row, score in zip(*found, strict=True)]
            for found in zip(rows, scores, strict=True)
        ]

    @property
    def dimension(self) -> int:
        """Width D of the vectors."""
        widths = [module.out_features for module in self.head if hasattr(module, "out_features")]
        width = widths[-1] if widths else self.model.config.hidden_size
        return min(width, self.truncate_dim or width)

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text after the prompt, special ones included, cut at `max_seq_length`; not padded."""
        encoded = self.tokenizer(
            [self.prompt + text for text in texts], truncation=True, max_length=self.max_seq_length
        )
        return encoded["input_ids"]

    def forward(self, ids: list[list[int]]) -> Tensor:
        """(B, D) in the model's dtype: vectors of B texts from `tokenize`, as one batch; differentiable."""
        padding = {"padding": "max_length", "max_length": self.max_seq_length} if self.pooling == "mean_padded" else {}
        batch = self.tokenizer.pad({"input_ids": ids}, return_tensors="pt", **padding).to(self.model.device)
        output = self.model(**batch, output_hidden_states=self.pooling == "first_last_mean")
        vectors = pool(output, batch["attention_mask"], self.pooling)
        vectors = self.head({"sentence_embedding": vectors})["sentence_embedding"] if len(self.head) else vectors
        return vectors[:, : self.truncate_dim]


def deduplicated(encode: Encode) -> Encode:
    """`encode` for each distinct text once, with the vectors of all texts in their order."""

    def encode_all(texts: Sequence[str]) -> np.ndarray:
        row_of: dict[str, int] = {}
        rows = [row_of.setdefault(text, len(row_of)) for text in texts]
        vectors = encode(list(row_of))
        return vectors if len(row_of) == len(texts) else vectors[rows]

    return encode_all


def checkpoint_settings(name_or_path: str) -> dict:
    """What a checkpoint says about its embeddings; empty for an LM.

    That is pooling, max_seq_length, head (later modules), prompts, default_prompt_name, truncate_dim: those that it has.

    Raises:
        InputError: it is damaged, or not a checkpoint that can be read.
    """
    check_name(name_or_path)
    with loading(name_or_path):
        settings = _read_json(name_or_path, MIRROR_CONFIG, dict) or {}
        if not settings or settings.get("has_head"):
            modules = _read_json(name_or_path, "modules.json", list)
            settings = (_sentence_transformers_settings(name_or_path, modules) if modules else {}) | settings
        _check_settings(settings)
    return settings


def choose_prompt(name_or_path: str, known: dict, prompt: str | None, prompt_name: str | None) -> str:
    """The text before every text: as given, by its name in the checkpoint, or the checkpoint's default.

    Raises:
        InputError: no prompt of that name, or a checkpoint that leaves the prompt out of its pooling.
    """
    prompts = known.get("prompts") or {}
    name = prompt_name or known.get("default_prompt_name")
    if prompt is None and name is not None:
        if name not in prompts:
            raise InputError(
                f"{name_or_path} has no prompt '{name}'; it has {', '.join(prompts) or 'none'}; or give one with --prompt"
            )
        prompt = prompts[name]
    if prompt and not known.get("include_prompt", True):
        raise InputError(
            f"{name_or_path} leaves the prompt out of its pooling, which is not supported; use --prompt ''"
        )
    return prompt or ""


def _read_json(name_or_path: str, filename: str, kind: type) -> dict | list | None:
    path = loading_policy.model_file(name_or_path, filename)
    if path is None:
        return None
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{name_or_path}: {filename} is not valid JSON ({error})") from error
    if not isinstance(content, kind):
        raise InputError(f"{name_or_path}: {filename} holds a {type(content).__name__}, expected a {kind.__name__}")
    return content


def _check_settings(settings: dict) -> None:
    """
    Raises:
        ValueError: a value of another type than a checkpoint has.
    """
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise ValueError(f"prompts {prompts!r} are not texts by name")
    if settings.get("pooling") not in (None, *POOLING_MODES):
        raise ValueError(f"pooling {settings['pooling']!r} is not one of {', '.join(POOLING_MODES)}")
    if not isinstance(settings.get("default_prompt_name"), str | None):
        raise ValueError(f"default_prompt_name {settings['default_prompt_name']!r} is not a name")
    for name in ("max_seq_length", "truncate_dim"):
        value = settings.get(name)
        if value is not None and (type(value) is not int or value < 1):
            raise ValueError(f"{name} {value!r} is not a positive whole number")


def _sentence_transformers_settings(name_or_path: str, modules: list[dict]) -> dict:
    """Pooling, length and later modules of a sentence-transformers checkpoint, read by that library itself."""
    from sentence_transformers import SentenceTransformer

    check_size(name_or_path, load_config(name_or_path))
    for module in modules:
        if Path(module["path"]).is_absolute() or ".." in Path(module["path"]).parts:
            raise InputError(f"{name_or_path}: modules.json names '{module['path']}', which is outside the checkpoint")
        loading_policy.check_weights(name_or_path, module["path"])
        _check_layer_size(name_or_path, module["path"])
    with quiet():
        loaded = SentenceTransformer(
            name_or_path, device="cpu", **loading_policy.remote_code(), model_kwargs=loading_policy.weights()
        )
    kinds = [type(module).__name__ for module in loaded]
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise InputError(
            f"{name_or_path}: modules {kinds}; only checkpoints that start with Transformer, Pooling are read"
        )
    mode = loaded[1].pooling_mode
    if mode not in POOLING_MODES:
        raise InputError(f"{name_or_path}: pooling '{mode}' is not one of {', '.join(POOLING_MODES)}; pass --pooling")
    return {
        "pooling": mode,
        "max_seq_length": loaded.max_seq_length,
        "head": list(loaded)[2:],
        # Versions of the library differ in which prompts they make up; empty ones say nothing.
        "prompts": {name: text for name, text in loaded.prompts.items() if text},
        "default_prompt_name": loaded.default_prompt_name,
        "include_prompt": getattr(loaded[1], "include_prompt", True),
        "truncate_dim": getattr(loaded, "truncate_dim", None),
    }


def _check_layer_size(name_or_path: str, folder: str) -> None:
    """`mirror.modeling.backbone.check_size` for a dense layer of sentence-transformers.

    Raises:
        InputError
    """
    config = _read_json(name_or_path, f"{folder}/config.json", dict) or {} if folder else {}
    sizes = [config.get(name) for name in ("in_features", "out_features")]
    stored = loading_policy.weights_bytes(name_or_path, folder)
    if stored is not None and all(type(size) is int for size in sizes) and sizes[0] * sizes[1] > 8 * stored:
        raise InputError(
            f"{name_or_path}: {folder}/config.json asks for a layer of {sizes[0]:,} x {sizes[1]:,} weights, but what is stored "
            f"has {stored:,} bytes"
        )


def _check_finite(vectors: np.ndarray, texts: Sequence[str]) -> None:
    bad = ~np.isfinite(vectors).all(axis=1)
    if bad.any():
        text = texts[int(bad.argmax())]
        raise InputError(
            f"{bad.sum()} of {len(texts)} vectors are not finite, first for {text[:80]!r}; try --dtype float32"
        )
