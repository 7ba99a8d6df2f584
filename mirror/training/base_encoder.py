"""A base model that is an encoder already: what is kept of it, and what a run says about it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from mirror.training.levels import LEVEL_TEXTS


if TYPE_CHECKING:
    from mirror.training.config import MirrorConfig

logger = logging.getLogger(__name__)


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
    return nn.Sequential(*head).float().requires_grad_(False).eval()


def prompts_to_save(base: dict, args: MirrorConfig) -> dict:
    """The prompts of the base model, as the default the one that is trained with, and its truncation."""
    prompts, default = base.get("prompts") or {}, args.prompt_name or base.get("default_prompt_name")
    if args.prompt is not None:
        default = "default" if args.prompt else None
        prompts = prompts | {"default": args.prompt} if args.prompt else prompts
    kept = {"prompts": prompts, "default_prompt_name": default, "truncate_dim": base.get("truncate_dim")}
    return {key: value for key, value in kept.items() if value}
