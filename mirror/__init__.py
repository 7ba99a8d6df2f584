"""Mirror encoders: adapt a text encoder, or turn a masked language model into one, without labels.

The names below are the public API. They are imported when they are first used, so `import mirror` costs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from mirror.cmlm.trainer import CMLMConfig as CMLMConfig
    from mirror.cmlm.trainer import CMLMTrainer as CMLMTrainer
    from mirror.data.augmentation import span_mask as span_mask
    from mirror.data.corpus import load_corpus as load_corpus
    from mirror.modeling.encoder import Encoder as Encoder
    from mirror.training.config import MirrorConfig as MirrorConfig
    from mirror.training.losses import InfoNCE as InfoNCE
    from mirror.training.losses import info_nce as info_nce
    from mirror.training.trainer import MirrorTrainer as MirrorTrainer

__version__ = "0.1.0"

_MODULES = {
    "CMLMConfig": "mirror.cmlm.trainer",
    "CMLMTrainer": "mirror.cmlm.trainer",
    "Encoder": "mirror.modeling.encoder",
    "InfoNCE": "mirror.training.losses",
    "MirrorConfig": "mirror.training.config",
    "MirrorTrainer": "mirror.training.trainer",
    "info_nce": "mirror.training.losses",
    "load_corpus": "mirror.data.corpus",
    "span_mask": "mirror.data.augmentation",
}
__all__ = list(_MODULES)


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module 'mirror' has no attribute '{name}'")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
