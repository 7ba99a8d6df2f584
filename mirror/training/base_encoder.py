"""The model that a training starts from: a masked LM, or an encoder already, of which more is kept."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mirror.common.errors import InputError
from mirror.modeling.backbone import check_length, check_vocabulary, load_backbone, load_tokenizer, position_limit
from mirror.modeling.checkpoint_settings import checkpoint_settings, choose_prompt
from mirror.modeling.encoder import Encoder
from mirror.training.levels import LEVEL_TEXTS


if TYPE_CHECKING:
    from mirror.training.config import MirrorConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BaseEncoder:
    """A loaded base model and what is kept of it.

    Args:
        head: its modules after the pooling, frozen.
        prompt: the text before every text.
        prompts: what the checkpoint says about prompts and truncation.
        dimension: width D of the vectors that the loss compares.
        truncate_dim: how many components the encoder that is saved returns; None: all.
        max_seq_length: of the encoder that will be saved, in tokens; at least that of the training.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    head: nn.Sequential
    prompt: str
    prompts: dict
    dimension: int
    truncate_dim: int | None
    max_seq_length: int


def load_base(
    model: str | PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, args: MirrorConfig, pairs: bool
) -> BaseEncoder:
    """The base model of a run; sets what `args` leaves open to what fits it (`MirrorConfig.resolve_for`) and says so.

    Args:
        model: a Hub id, a folder, or a loaded encoder without a head.
        tokenizer: if it is not beside the model.
        pairs: the corpus has two columns.

    Raises:
        InputError: a model or tokenizer that cannot be trained, or not with these settings.
    """
    name = model if isinstance(model, str) else model.name_or_path
    known = checkpoint_settings(name) if name else {}
    if isinstance(model, str):  # with the pooling of the base, which may need its pooler
        model, own_tokenizer = load_backbone(model, args.pooling or known.get("pooling") or "mean")
        tokenizer = tokenizer or own_tokenizer
    tokenizer = tokenizer or load_tokenizer(name, model.config)
    check_vocabulary(tokenizer, model.config, name)
    changed = args.resolve_for(name, model.config.model_type, known.get("pooling"), pairs)
    head = keep_modules(known, args.pooling, name)
    logger.info(describe_base(name, known.get("pooling"), head, args, changed))
    check_length(model, args.max_seq_length)
    encoder = Encoder(model, tokenizer, args.pooling, args.max_seq_length, [*head])
    if len(head):
        encoder.check(name)
    return BaseEncoder(
        name=name,
        model=model,
        tokenizer=tokenizer,
        head=head,
        prompt=choose_prompt(name, known, args.prompt, args.prompt_name),
        prompts=prompts_to_save(known, args),
        dimension=encoder.dimension,
        truncate_dim=known.get("truncate_dim"),
        max_seq_length=min(max(args.max_seq_length, known.get("max_seq_length") or 0), position_limit(model)),
    )


def describe_base(name: str, pooling: str | None, head: nn.Sequential, args: MirrorConfig, changed: dict) -> str:
    """The line of a start that says what the base model was found to be, and which settings follow.

    Args:
        pooling: of a base that is an encoder already.
        head: its modules after the pooling.
        changed: what `MirrorConfig.resolve_for` returned.
    """
    name, texts = Path(name).name or "the model", LEVEL_TEXTS[args.level]
    if pooling is None:
        return f"base: {name} is a masked language model; settings of the paper for {texts}"
    if args.pooling != pooling:
        return f"base: {name} is trained by --pooling {args.pooling} instead of its own; settings of the paper for {texts}"
    modules = ", ".join([f"{pooling} pooling", *(type(module).__name__.lower() for module in head)])
    flags = " ".join(f"--{flag} {value}" for flag, value in changed.items())
    settings = f"settings for adapting: {flags}; the others" if flags else "settings"
    return f"base: {name} is an encoder already ({modules}); {settings} of the paper for {texts} (docs/adapt.md)"


def keep_modules(base: dict, pooling: str, name: str) -> nn.Sequential:
    """The base's modules after the pooling, frozen: the loss is computed through them, and they are saved again."""
    head = base.get("head", ())
    if head and pooling != base["pooling"]:
        logger.warning(
            "%s: its modules after the pooling are left out, because --pooling %s is not its own", name, pooling
        )
        head = ()
    for module in head:
        if not type(module).__module__.startswith("sentence_transformers."):
            raise InputError(
                f"{name}: its module {type(module).__name__} comes with code of its own, which a trained checkpoint would "
                f"lack; leave its modules out with another --pooling than {base['pooling']}"
            )
    return nn.Sequential(*head).float().requires_grad_(False).eval()


def prompts_to_save(base: dict, args: MirrorConfig) -> dict:
    """The prompts of the base model, as the default the one that is trained with, and its truncation."""
    prompts, default = base.get("prompts") or {}, args.prompt_name or base.get("default_prompt_name")
    if args.prompt is not None:
        default = "default" if args.prompt else None
        prompts = prompts | {"default": args.prompt} if args.prompt else prompts
    kept = {"prompts": prompts, "default_prompt_name": default, "truncate_dim": base.get("truncate_dim")}
    return {key: value for key, value in kept.items() if value}
