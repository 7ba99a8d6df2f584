"""A checkpoint that turns texts into vectors. Knows nothing of training, tasks or scores."""

from __future__ import annotations

import inspect
import json
import logging
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL_FAMILIES
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED_FAMILIES
from transformers.utils import logging as transformers_logging

from mirror import trust
from mirror.errors import InputError
from mirror.pooling import POOLING_MODES, pool


logger = logging.getLogger(__name__)

_INSTALLED = Path(__file__).resolve().parent / "assets"  # where a wheel puts what lies beside mirror/ in a checkout
EMBEDDED_MODEL = (_INSTALLED if _INSTALLED.exists() else _INSTALLED.parents[1] / "assets") / "mini-mlm"
MIRROR_CONFIG = "mirror_config.json"  # what this project writes beside a checkpoint
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
    ):
        if pooling not in POOLING_MODES:
            raise InputError(f"unknown pooling '{pooling}'; one of {', '.join(POOLING_MODES)}")
        self.model, self.tokenizer, self.pooling = model, tokenizer, pooling
        self.max_seq_length = max_seq_length
        self.head = nn.Sequential(*head).to(model.device)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str,
        pooling: str | None = None,
        max_seq_length: int | None = None,
        dtype: str = "float32",
        device: str | torch.device | None = None,
    ) -> Encoder:
        """Load a checkpoint of this project, a sentence-transformers one, or any masked LM.

        Args:
            name_or_path: a folder or a Hub id.
            pooling: overrides the checkpoint's; needed where the checkpoint does not say.
            max_seq_length: in tokens, special ones included; overrides the checkpoint's.
            dtype: of the weights and the forward pass: float32, bfloat16 or float16.
            device: by default the accelerator, if there is one.

        Raises:
            InputError: nothing loadable there, a decoder, or no pooling known.
        """
        if Path(name_or_path).is_dir() and not (Path(name_or_path) / "config.json").exists():
            raise InputError(f"{name_or_path}: no config.json in this folder; give a model folder or a Hub id")
        stored = _read_json(name_or_path, MIRROR_CONFIG)
        modules = _read_json(name_or_path, "modules.json")
        known = stored or (_sentence_transformers_settings(name_or_path, modules) if modules else {})
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
        return cls(model.to(device).eval(), tokenizer, pooling, min(length, position_limit(model)), head)

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], batch_size: int = 64, show_progress: bool | None = None) -> np.ndarray:
        """Vectors of `texts` in their order; each distinct text is encoded once, in batches of similar length.

        Args:
            texts: N strings; special-token text in them ("[MASK]") is read as plain text.
            batch_size: rows of one forward pass.
            show_progress: a bar on stderr; by default only for a long list on a terminal.

        Returns:
            (N, D) float32.

        Raises:
            InputError: a vector is not finite; names the first such text.
        """
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        unique = list(dict.fromkeys(texts))
        ids = self.tokenize(unique)
        order = sorted(range(len(unique)), key=lambda row: -len(ids[row]))  # longest first: memory shows at once
        vectors = np.empty((len(unique), self.dimension), dtype=np.float32)
        disable = (None if len(unique) > 2000 else True) if show_progress is None else not show_progress
        with tqdm(total=len(unique), desc="encoding", unit="text", leave=False, disable=disable) as bar:
            for start in range(0, len(order), batch_size):
                rows = order[start : start + batch_size]
                vectors[rows] = self.forward([ids[row] for row in rows]).float().cpu().numpy()
                bar.update(len(rows))
        _check_finite(vectors, unique)
        position = {text: row for row, text in enumerate(unique)}
        return vectors[[position[text] for text in texts]]

    @property
    def dimension(self) -> int:
        """Width D of the vectors."""
        widths = [module.out_features for module in self.head if hasattr(module, "out_features")]
        return widths[-1] if widths else self.model.config.hidden_size

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, special ones included, cut at `max_seq_length`; not padded."""
        encoded = self.tokenizer(
            list(texts), truncation=True, max_length=self.max_seq_length, split_special_tokens=True
        )
        return encoded["input_ids"]

    def forward(self, ids: list[list[int]]) -> Tensor:
        """(B, D) in the model's dtype: vectors of B texts from `tokenize`, as one batch; differentiable."""
        padding = {"padding": "max_length", "max_length": self.max_seq_length} if self.pooling == "mean_padded" else {}
        batch = self.tokenizer.pad({"input_ids": ids}, return_tensors="pt", **padding).to(self.model.device)
        output = self.model(**batch, output_hidden_states=self.pooling == "first_last_mean")
        vectors = pool(output, batch["attention_mask"], self.pooling)
        return self.head({"sentence_embedding": vectors})["sentence_embedding"] if len(self.head) else vectors


def load_backbone(
    name_or_path: str, pooling: str, dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Encoder and tokenizer; the pooler is left out unless `pooling` uses it, so that nothing random is loaded or saved.

    Raises:
        InputError: not found, not a model, not a bidirectional encoder, or not to be trusted (`mirror.trust`).
    """
    try:
        config = AutoConfig.from_pretrained(name_or_path, **trust.remote_code())
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, **trust.remote_code())
        _refuse_decoder(name_or_path, config)
        options = {} if pooling == "pooler" else _without_pooler(config)
        trust.check_weights(name_or_path)
        model = _load_weights(name_or_path, config=config, dtype=dtype, **options)
    except InputError:
        raise
    except (OSError, ValueError, pickle.UnpicklingError) as error:
        raise InputError(f"cannot load model '{name_or_path}': {' '.join(str(error).split())[:300]}") from error
    if pooling == "pooler" and getattr(model, "pooler", None) is None:
        raise InputError(f"{name_or_path} ({config.model_type}) has no pooler; use --pooling cls or mean")
    return model, tokenizer


def _load_weights(name_or_path: str, **options) -> PreTrainedModel:
    """`from_pretrained` without its table of left-out head weights; a weight that is missing is an error instead."""
    with quiet():
        model, report = AutoModel.from_pretrained(name_or_path, output_loading_info=True, **trust.weights(), **options)
    if missing := sorted(report["missing_keys"]):
        raise InputError(
            f"{name_or_path} lacks {len(missing)} weights of a {type(model).__name__}, first {missing[0]}"
        )
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """No loading bars and tables from the libraries within."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


def check_length(model: PreTrainedModel, max_seq_length: int) -> None:
    """Refuse rows longer than the model's positions.

    Raises:
        InputError
    """
    if max_seq_length > position_limit(model):
        raise InputError(
            f"--max_seq_length {max_seq_length} is more than the {position_limit(model)} positions of the model"
        )


def position_limit(model: PreTrainedModel) -> int:
    """The longest row, in tokens, that the position embeddings allow (RoBERTa's start after the padding index)."""
    limit = getattr(model.config, "max_position_embeddings", None) or 1 << 30
    embedding = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    padding_idx = getattr(embedding, "padding_idx", None)
    return limit if padding_idx is None else limit - padding_idx - 1


def _refuse_decoder(name_or_path: str, config: PretrainedConfig) -> None:
    only_causal = config.model_type in CAUSAL_FAMILIES and config.model_type not in MASKED_FAMILIES
    if config.is_encoder_decoder or only_causal:
        raise InputError(
            f"{name_or_path} ({config.model_type}) is not a bidirectional encoder; "
            "give a masked LM such as bert-base-uncased"
        )


def _without_pooler(config: PretrainedConfig) -> dict[str, bool]:
    model_class = AutoModel._model_mapping[type(config)]
    accepts = "add_pooling_layer" in inspect.signature(model_class.__init__).parameters
    return {"add_pooling_layer": False} if accepts else {}


def _read_json(name_or_path: str, filename: str) -> dict | list | None:
    try:
        path = trust.model_file(name_or_path, filename)
    except OSError as error:  # no name that the Hub could have
        raise InputError(
            f"cannot load model '{name_or_path}': there is no such folder, and it is no Hub id"
        ) from error
    try:
        return json.loads(Path(path).read_text(encoding="utf-8")) if path else None
    except ValueError as error:
        raise InputError(f"{name_or_path}: {filename} is no JSON ({error})") from error


def _sentence_transformers_settings(name_or_path: str, modules: list[dict]) -> dict:
    """Pooling, length and later modules of a sentence-transformers checkpoint, read by that library itself."""
    from sentence_transformers import SentenceTransformer

    for module in modules:
        if Path(module["path"]).is_absolute() or ".." in Path(module["path"]).parts:
            raise InputError(
                f"{name_or_path}: modules.json names '{module['path']}', which is outside of the checkpoint"
            )
        trust.check_weights(name_or_path, module["path"])
    try:
        with quiet():
            loaded = SentenceTransformer(
                name_or_path, device="cpu", **trust.remote_code(), model_kwargs=trust.weights()
            )
    except (OSError, ValueError, ImportError, pickle.UnpicklingError) as error:
        raise InputError(f"cannot load model '{name_or_path}': {' '.join(str(error).split())[:300]}") from error
    kinds = [type(module).__name__ for module in loaded]
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise InputError(
            f"{name_or_path}: modules {kinds}; only checkpoints that start with Transformer, Pooling are read"
        )
    mode = loaded[1].pooling_mode
    if mode not in POOLING_MODES:
        raise InputError(f"{name_or_path}: pooling '{mode}' is not one of {', '.join(POOLING_MODES)}; pass --pooling")
    return {"pooling": mode, "max_seq_length": loaded.max_seq_length, "head": list(loaded)[2:]}


def _check_finite(vectors: np.ndarray, texts: list[str]) -> None:
    bad = ~np.isfinite(vectors).all(axis=1)
    if bad.any():
        text = texts[int(bad.argmax())]
        raise InputError(
            f"{bad.sum()} of {len(texts)} vectors are not finite, first for {text[:80]!r}; try --dtype float32"
        )
