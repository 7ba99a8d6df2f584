"""Principal component removal, kept inside a checkpoint as a linear layer that every reader applies.

    python -m mirror.postprocess --model_name_or_path out/cmlm --text_file sample.txt --num_components 1 --output_dir out/pcr

takes the first principal components of a sample's vectors out of every vector (CMLM, section 5: the components that tell
in which language a text is). A sample of one language makes an encoder for that language; a mixed one, for all.
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

from mirror.checkpoint import verify_encoder
from mirror.cmlm.layers import append_layers, dense
from mirror.command_line import parse_flags
from mirror.data import DataSettings, load_corpus
from mirror.encoder import Encoder
from mirror.errors import InputError, run_main
from mirror.evaluation.components import fit_components


if TYPE_CHECKING:
    from sentence_transformers.models import Dense

logger = logging.getLogger(__name__)


def removal_layer(components: np.ndarray) -> Dense:
    """I - C^T C for orthonormal components C (n, D): takes them out of a vector."""
    projector = components.T.astype(np.float64) @ components.astype(np.float64)  # (D, D)
    return dense(torch.from_numpy(np.eye(len(projector)) - projector), None, nn.Identity())


def remove_components_in_checkpoint(source: str, target: str, texts: Sequence[str], num_components: int) -> np.ndarray:
    """A copy of the checkpoint `source` in `target` whose vectors lack the principal components of `texts`.

    Returns:
        The components, (num_components, D), with orthonormal rows.

    Raises:
        InputError: `source` is no folder with a checkpoint, `target` exists, or there are fewer texts than components.
    """
    if not (Path(source) / "modules.json").exists():
        raise InputError(f"{source}: no modules.json; give a checkpoint of this project or of sentence-transformers")
    if Path(target).exists():
        raise InputError(f"--output_dir {target} exists; give a new one")
    encoder = Encoder.from_pretrained(source)
    components = fit_components(encoder.encode(list(texts)), num_components)
    layer = removal_layer(components)
    aside = Path(f"{target}.tmp")
    shutil.copytree(source, aside, ignore=shutil.ignore_patterns("checkpoint-*"), dirs_exist_ok=True)
    append_layers(aside, [layer])
    changed = Encoder(
        encoder.model, encoder.tokenizer, encoder.pooling, encoder.max_seq_length, [*encoder.head, layer]
    )
    verify_encoder(aside, changed, list(texts)[:8])
    aside.replace(target)
    return components


@dataclass
class RemovalArguments:
    model_name_or_path: str = field(metadata={"help": "Checkpoint folder to start from; it stays as it is."})
    text_file: list[str] = field(
        metadata={"help": "Sample that the components are fitted on; formats of --train_file."}
    )
    output_dir: str = field(metadata={"help": "Folder of the new checkpoint."})
    text_column: str | None = field(
        default=None, metadata={"help": "Column with the text; default: 'text' or the only one."}
    )
    num_components: int = field(default=1, metadata={"help": "How many components go."})
    max_samples: int = field(default=10_000, metadata={"help": "Texts of the sample that are read at most."})


def main() -> None:
    (args,) = parse_flags((RemovalArguments,), description=__doc__)
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    logging.getLogger("sentence_transformers").setLevel(logging.WARNING)
    settings = DataSettings(
        train_file=tuple(args.text_file), text_column=args.text_column, max_train_samples=args.max_samples
    )
    texts = load_corpus(settings).rows["text"]
    remove_components_in_checkpoint(args.model_name_or_path, args.output_dir, list(texts), args.num_components)
    logger.info(
        "%s of %s dimensions taken out, fitted on %s texts; encoder in %s",
        *(args.num_components, "the vector's", len(texts), args.output_dir),
    )


if __name__ == "__main__":
    run_main(main)
