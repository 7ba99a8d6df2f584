"""Principal component removal, stored in a checkpoint as a linear layer that every reader applies.

    python -m mirror.tools.component_removal --model_name_or_path out/cmlm --text_file sample.txt --num_components 1 --output_dir out/pcr

removes the first principal components, fitted on the embeddings of a sample of texts, from every embedding (CMLM,
section 5: they encode the language of a text). Fit them on texts of one language for an encoder of that language, or
on mixed texts for a multilingual encoder.
"""

from __future__ import annotations

import logging
import shutil
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.common.cli import Parser, add_trust, positive
from mirror.common.errors import InputError, run_main
from mirror.common.logging import configure_logging


if TYPE_CHECKING:
    import numpy as np
    from sentence_transformers.models import Dense

logger = logging.getLogger(__name__)


def removal_layer(components: np.ndarray) -> Dense:
    """The linear layer I - C^T C, which removes the components from a vector.

    Args:
        components: C, (n, D), with orthonormal rows.
    """
    import numpy as np
    import torch

    from mirror.modeling.dense_layers import dense

    projector = components.T.astype(np.float64) @ components.astype(np.float64)  # (D, D)
    return dense(torch.from_numpy(np.eye(len(projector)) - projector), None, torch.nn.Identity())


def remove_components_in_checkpoint(source: str, target: str, texts: Sequence[str], num_components: int) -> np.ndarray:
    """Copy the checkpoint `source` to `target` and remove the principal components of `texts` from its embeddings.

    Returns:
        The components, (num_components, D), with orthonormal rows.

    Raises:
        InputError: `source` is not a checkpoint folder, `target` exists, or there are fewer texts than components.
    """
    check_folders(source, target)

    # Imported late to keep --help and errors in the flags fast.
    from mirror.evaluation.components import fit_components
    from mirror.modeling.checkpoint import verify_encoder
    from mirror.modeling.dense_layers import append_layers
    from mirror.modeling.encoder import Encoder

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


def check_folders(source: str, target: str) -> None:
    """
    Raises:
        InputError: `source` is not a checkpoint folder, or `target` exists.
    """
    if not (Path(source) / "modules.json").exists():
        raise InputError(f"{source}: no modules.json; give a checkpoint of this project or of sentence-transformers")
    if Path(target).exists():
        raise InputError(f"--output_dir {target} exists; give a new folder")


def main() -> None:
    args = parse_arguments()
    configure_logging()
    check_folders(args.model_name_or_path, args.output_dir)  # before the texts are read

    from mirror.common import loading_policy
    from mirror.data.corpus import CorpusSource, load_corpus

    loading_policy.grant(args.allow_pickle, args.trust_remote_code)
    source = CorpusSource(
        train_file=tuple(args.text_file), text_column=args.text_column, max_train_samples=args.max_samples
    )
    texts = load_corpus(source).rows["text"]
    remove_components_in_checkpoint(args.model_name_or_path, args.output_dir, list(texts), args.num_components)
    logger.info(
        "removed %s component(s), fitted on %s texts; saved in %s", args.num_components, len(texts), args.output_dir
    )


def parse_arguments() -> Namespace:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--model_name_or_path", metavar="M", required=True, help="checkpoint folder to copy; it is not changed")
    add("--text_file", nargs="+", metavar="F", required=True,
        help="texts to fit the components on; same formats as --train_file of run_mirror.py")  # fmt: skip
    add("--output_dir", metavar="O", required=True, help="folder of the new checkpoint; must not exist")
    add("--text_column", metavar="T", help="column with the text (default: 'text', or the only column)")
    add("--num_components", type=positive, default=1, metavar="N", help="number of components to remove")
    add("--max_samples", type=positive, default=10_000, metavar="N", help="fit them on at most N texts")
    add_trust(parser)
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
