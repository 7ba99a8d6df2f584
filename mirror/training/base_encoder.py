"""Load the base model of a run, a masked LM or an encoder, and add low-rank updates to it (LoRA)."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from mirror.common.errors import InputError
from mirror.data.source import PASSAGE_TOKENS
from mirror.evaluation.own_text import are_names
from mirror.modeling import backbone
from mirror.modeling.encoder import Encoder, prompt_tokens
from mirror.modeling.read_checkpoint import (
    ROLES,
    check_direction,
    checkpoint_settings,
    choose_prompt,
    is_causal,
    is_decoder,
    warn_of_similarity,
)
from mirror.modeling.static import StaticModel
from mirror.training.options import LEARNING_RATE, LEVEL_TEXTS, LEVELS, PAPER, default_pooling


if TYPE_CHECKING:
    from mirror.data.cleaning import Corpus
    from mirror.training.config import MirrorConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BaseEncoder:
    """Base model of a run, with the parts of its checkpoint that are saved again.

    `head` are its modules after the pooling, frozen. `prompt` stands before every text that is encoded, `view_prompts` before the
    first and the second text of every row in training, and the pooling leaves out `skipped` tokens of these two. `prompts` is
    what the saved checkpoint says about prompts, and how many components it returns (`truncate_dim`). `dimension` is the width D
    of the vectors that the loss compares, `max_seq_length` that of the saved encoder, at least that of the run.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    head: nn.Sequential
    prompt: str
    view_prompts: tuple[str, str]
    skipped: tuple[int, int] | None
    prompts: dict
    dimension: int
    max_seq_length: int


def settings_of(model: str | PreTrainedModel) -> dict:
    """Return what the checkpoint says of the encoder that it holds, nothing of a language model."""
    name = model if isinstance(model, str) else model.name_or_path
    return checkpoint_settings(name) if name else {}


def passages_for(
    model: str | PreTrainedModel, args: MirrorConfig, tokenizer: PreTrainedTokenizerBase | None = None
) -> dict[str, object]:
    """Return `tokenizer` and `max_tokens` of `load_corpus`: at most as long as an encoder's texts, or as in `args`."""
    known, name = settings_of(model), model if isinstance(model, str) else model.name_or_path
    own = args.own_length(known.get("pooling"), known.get("max_seq_length"))
    longest = args.max_seq_length if args.level == "passage" else PASSAGE_TOKENS
    length = min(own, longest) if own else args.max_seq_length
    return {"tokenizer": lambda: tokenizer or backbone.tokenizer_of(name), "max_tokens": length}


def load_base(
    model: str | PreTrainedModel,
    known: dict,
    tokenizer: PreTrainedTokenizerBase | None,
    args: MirrorConfig,
    corpus: Corpus,
) -> BaseEncoder:
    """Load the base model, with `settings_of` it, and fill in what `args` leaves open. Log both."""
    pairs, names = corpus.has_pairs, are_names(corpus.sample_texts(500))
    if not isinstance(model, str) and any(type(each).__module__.startswith("peft.") for each in model.modules()):
        advice = "pass model.merge_and_unload(), and lora_rank for new ones"
        raise InputError(f"a model with adapters of peft is not trained as it is; {advice}")
    if isinstance(name := model, str):  # with the pooling of the base, which may need its pooler
        model, own_tokenizer = backbone.load_backbone(model, args.pooling or known.get("pooling") or "mean")
        tokenizer = tokenizer or own_tokenizer
    else:
        name, model = model.name_or_path, model.base_model  # without a head
    tokenizer = tokenizer or backbone.load_tokenizer(name, model.config)
    backbone.check_vocabulary(tokenizer, model.config, name)
    set_direction(model, args.attention_direction, name)
    if args.lora_rank and isinstance(model, StaticModel):
        raise InputError(f"--lora_rank: {name} is a static encoder, which has no layers; leave the flag out")
    changed = args.resolve_for(
        *(name, model.config.model_type, known.get("pooling"), pairs, names),
        length=min(known["max_seq_length"], backbone.position_limit(model)) if known.get("max_seq_length") else None,
        direction=direction_of(model.config),
        masks=bool(args.mask_token) or tokenizer.mask_token_id is not None,
        weights=sum(weight.numel() for weight in model.parameters()),
    )
    if not args.lora_rank and model.dtype in (torch.float16, torch.bfloat16):  # in which steps of 2e-5 are lost
        logger.info("The weights of %s are trained in float32, not %s", name, model.dtype)
        model.float()
    check_direction(model.config, args.pooling, name)
    head = keep_modules(known, args.pooling, name)
    warn_of_similarity(name, known)
    keeps = corpus.source.keep_duplicates
    logger.info(describe_base(name, known.get("pooling"), head, args, changed, model.config, keeps))
    if names and not pairs and known.get("pooling") == args.pooling:
        harm = "to adapt an encoder to names can make linking worse: score it before and after (docs/biomedical.md)"
        logger.warning("most texts have fewer than six words; %s", harm)
    backbone.check_length(model, args.max_seq_length)
    encoder = Encoder(model, tokenizer, args.pooling, args.max_seq_length, [*head])
    if len(head):
        encoder.check(name)
    # The prompts of the base are saved again, with the one of this run as the default.
    prompts, default = known.get("prompts") or {}, args.prompt_name or known.get("default_prompt_name")
    if args.prompt is not None:
        default = "default" if args.prompt else None
        # A base without prompts of its own for queries and documents gets this one, with which it is trained.
        of_roles = {} if prompts.keys() & set(ROLES) else dict.fromkeys(ROLES, args.prompt)
        prompts = prompts | of_roles | {"default": args.prompt} if args.prompt else prompts
    kept = {"prompts": prompts, "default_prompt_name": default, "truncate_dim": known.get("truncate_dim")}
    kept |= {"similarity_fn_name": known.get("similarity_fn_name")}
    prompt = choose_prompt(name, known, args.prompt, args.prompt_name)
    view_prompts, skipped = (prompt, prompt), None
    if args.pair_prompts:
        if not pairs:
            raise InputError("--pair_prompts needs texts in two columns; use --prompt_name, or give --pair_columns")
        view_prompts = tuple(choose_prompt(name, known, None, each) for each in args.pair_prompts)
    if any(view_prompts) and not known.get("include_prompt", True) and args.pooling != "pooler":
        skipped = tuple((each and prompt_tokens(tokenizer, each, args.max_seq_length)) or 0 for each in view_prompts)
    taken = max(len(tokenizer(each)["input_ids"]) for each in view_prompts)
    if any(view_prompts) and taken >= args.max_seq_length:
        message = "the prompt has %d tokens, so --max_seq_length %d leaves none of a text: give a larger one"
        logger.warning(message, taken, args.max_seq_length)
    longest = min(max(args.max_seq_length, known.get("max_seq_length") or 0), backbone.position_limit(model))
    kept = {key: value for key, value in kept.items() if value}
    kept |= {} if known.get("include_prompt", True) else {"include_prompt": False}
    return BaseEncoder(name, model, tokenizer, head, prompt, view_prompts, skipped, kept, encoder.dimension, longest)


def direction_of(config: PretrainedConfig) -> str | None:
    """Return `causal` or `bidirectional` for a decoder, None for any other model."""
    return ("causal" if is_causal(config) else "bidirectional") if is_decoder(config) else None


@torch.no_grad()
def set_direction(model: PreTrainedModel, direction: str | None, name: str) -> None:
    """Make a decoder causal or bidirectional, by the word in its configuration that transformers reads."""
    if direction is None or direction == (direction_of(model.config) or "bidirectional"):
        return
    what = f"--attention_direction {direction}: {name} ({model.config.model_type})"
    if not is_decoder(model.config) or getattr(model.config, "use_bidirectional_attention", None):
        raise InputError(f"{what} was trained as a bidirectional encoder; leave the flag out")
    model.config.is_causal = direction == "causal"
    ids = torch.tensor([[5, 6, 7], [5, 6, 8]], device=model.device)
    one, other = model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[:, 0]
    if torch.equal(one, other) != (direction == "causal"):
        raise InputError(f"{what} does not take it in this version of transformers; leave the flag out")
    if direction == "bidirectional":
        versions = "transformers 5.2 and later read the saved encoder as it is, earlier versions as a causal one"
        logger.warning("%s is made bidirectional: %s, without an error", name, versions)


def describe_base(
    name: str,
    pooling: str | None,
    head: nn.Sequential,
    args: MirrorConfig,
    changed: dict,
    config: PretrainedConfig,
    keeps_duplicates: bool = False,
) -> str:
    """Return the log line that describes the detected base model and the settings that follow from it.

    `pooling` and `head` are those of a base that is an encoder already, None for a language model. `changed` is what
    `MirrorConfig.resolve_for` returned, `config` that of the base.
    """
    name, preset = Path(name).name or "the model", LEVELS[args.level] | PAPER
    keys = [key for key in preset if key not in {*changed, "pooling"} and getattr(args, key) != preset[key]]
    keys += [] if args.learning_rate == LEARNING_RATE or "learning_rate" in changed else ["learning_rate"]
    differences = [f"--{key} {getattr(value, '__name__', value)}" for key in keys for value in [getattr(args, key)]]
    direction = direction_of(config)
    papers = preset.get("pooling") or default_pooling(config.model_type, direction).replace("mean", "mean_padded")
    if args.pooling != papers:
        differences.append("a mean without padding" if args.pooling == "mean" else f"--pooling {args.pooling}")
    held_out = "at most a tenth" if args.validation_samples is None else f"{args.validation_samples:,}"
    differences += [] if args.validation_samples == 0 else [f"{held_out} held out"]
    differences += [] if keeps_duplicates else ["no repeated texts (--keep_duplicates)"]
    texts = LEVEL_TEXTS[args.level] + (f", except: {', '.join(differences)}" if differences else "")
    flags = " ".join(f"--{flag} {value}" for flag, value in changed.items())
    use = "it" if pooling is None else "adapting"
    settings = f"settings for {use}: {flags}; the others" if flags else "settings"
    if pooling is None:
        kind = f"decoder language model with {direction} attention" if direction else "masked language model"
        return f"base: {name} is a {kind}; {settings} of the paper for {texts}"
    if args.pooling != pooling:
        return f"base: {name} is trained by --pooling {args.pooling} instead of its own; settings of the paper for {texts}"
    modules = ", ".join([f"{pooling} pooling", *(type(module).__name__.lower() for module in head)])
    return f"base: {name} is an encoder already ({modules}); {settings} of the paper for {texts} (docs/which-way.md)"


def keep_modules(base: dict, pooling: str, name: str) -> nn.Sequential:
    """Return the base's modules after the pooling, frozen. The loss sees their output, and they are saved again."""
    head = base.get("head", ())
    if head and pooling != base["pooling"]:
        logger.warning("%s: --pooling %s is not its own, so the modules after the pooling are dropped", name, pooling)
        head = ()
    for module in head:
        if not type(module).__module__.startswith("sentence_transformers."):
            raise InputError(
                f"{name}: its module {type(module).__name__} needs code that a trained checkpoint would lack; "
                f"choose another --pooling than {base['pooling']}, which drops the modules after it"
            )
    return nn.Sequential(*head).float().requires_grad_(False).eval()


def add_lora(model: PreTrainedModel, rank: int) -> None:
    """Freeze `model` and add a low-rank update to every linear layer, in place (LoRA, Hu et al. 2022).

    The update is scaled by 2 and has no dropout of its own, so the noise in the model is that of the flags.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        message = "--lora_rank needs peft: pip install peft, or give --lora_rank 0 to train all weights"
        raise InputError(message) from error
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"), model)


def merged(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of `model` on the CPU, with the adapters merged into its weights. A GPU may have no room for two models."""
    on_cpu = {id(x): nn.Parameter(x.detach().to("cpu", copy=True), x.requires_grad) for x in model.parameters()}
    plain = copy.deepcopy(model, on_cpu).to("cpu")  # takes these in place of copies of its own
    for name, module in list(plain.named_modules()):
        if hasattr(module, "get_base_layer"):
            module.merge()
            plain.set_submodule(name, module.get_base_layer())
    plain._hf_peft_config_loaded = False  # otherwise transformers saves the adapters only
    return plain
