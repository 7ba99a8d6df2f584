"""Principal component removal, stored in a checkpoint as a linear layer that every reader applies.

    python -m mirror.tools.component_removal --model_name_or_path out/cmlm --text_file sample.txt --num_components 1 --output_dir out/pcr

removes the first principal components, fitted on the embeddings of a sample of texts, from every embedding (CMLM,
section 5: they encode the language of a text). Fit them on texts of one language for an encoder of that language, or
on mixed texts for a multilingual encoder.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from mirror.common.config_parser import parse_flags
from mirror.common.errors import InputError, run_main
from mirror.common.logging import configure_logging
from mirror.data.corpus import CorpusSource, load_corpus
from mirror.evaluation.components import fit_components
from mirror.modeling.checkpoint import verify_encoder
from mirror.modeling.dense_layers import append_layers, dense
from mirror.modeling.encoder import Encoder


if TYPE_CHECKING:
    from sentence_transformers.models import Dense

logger = logging.getLogger(__name__)


def removal_layer(components: np.ndarray) -> Dense:
    """The linear layer I - C^T C, which removes the components from a vector.

    Args:
        components: C, (n, D), with orthonormal rows.
    """
    projector = components.T.astype(np.float64) @ components.astype(np.float64)  # (D, D)
    return dense(torch.from_numpy(np.eye(len(projector)) - projector), None, nn.Identity())


def remove_components_in_checkpoint(source: str, target: str, texts: Sequence[str], num_components: int) -> np.ndarray:
    """Copy the checkpoint `source` to `target` and remove the principal components of `texts` from its embeddings.

    Returns:
        The components, (num_components, D), with orthonormal rows.

    Raises:
        InputError: `source` is not a checkpoint folder, `target` exists, or there are fewer texts than components.
    """
    if not (Path(source) / "modules.json").exists():
        raise InputError(f"{source}: no modules.json; give a checkpoint of this project or of sentence-transformers")
    if Path(target).exists():
        raise InputError(f"--output_dir {target} exists; give a new folder")
    encoder = Encoder.from_pretrained(source)
    truncate_dim, encoder.truncate_dim = (
        encoder.truncate_dim,
        None,
    )  # sentence-transformers truncates after all modules
    components = fit_components(encoder.encode(list(texts)), num_components)
    layer = removal_layer(components)
    temporary = Path(f"{target}.tmp")
    shutil.copytree(source, temporary, ignore=shutil.ignore_patterns("checkpoint-*"), dirs_exist_ok=True)
    append_layers(temporary, [layer])
    expected = Encoder(
        encoder.model,
        encoder.tokenizer,
        encoder.pooling,
        encoder.max_seq_length,
        [*encoder.head, layer],
        encoder.prompt,
        truncate_dim,
    )
    verify_encoder(temporary, expected, list(texts)[:8])
    temporary.replace(target)
    return components


@dataclass
class RemovalArguments:
    model_name_or_path: str = field(metadata={"help": "Checkpoint folder to copy; it is not changed."})
    text_file: list[str] = field(metadata={"help": "Texts to fit the components on; same formats as --train_file."})
    output_dir: str = field(metadata={"help": "Folder of the new checkpoint; must not exist."})
    text_column: str | None = field(
        default=None, metadata={"help": "Column with the text; default: 'text', or the only column."}
    )
    num_components: int = field(default=1, metadata={"help": "Number of components to remove."})
    max_samples: int = field(default=10_000, metadata={"help": "Maximum number of texts to fit the components on."})


def main() -> None:
    (args,) = parse_flags((RemovalArguments,), description=__doc__)
    configure_logging()
    source = CorpusSource(
        train_file=tuple(args.text_file), text_column=args.text_column, max_train_samples=args.max_samples
    )
    texts = load_corpus(source).rows["text"]
    remove_components_in_checkpoint(args.model_name_or_path, args.output_dir, list(texts), args.num_components)
    logger.info(
        "removed %s component(s), fitted on %s texts; saved in %s", args.num_components, len(texts), args.output_dir
    )


if __name__ == "__main__":
    run_main(main)
