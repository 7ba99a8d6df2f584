"""Principal component removal and whitening, stored in a checkpoint as a linear layer that every reader applies.

    python -m mirror.tools.component_removal --model_name_or_path out/cmlm --text_file sample.txt --num_components 1 --output_dir out/pcr
    python -m mirror.tools.component_removal --model_name_or_path out/mirror --text_file sample.txt --whiten --output_dir out/white
    python -m mirror.tools.component_removal --model_name_or_path out/mirror --text_file sample.txt --whiten 20 --output_dir out/soft

The first removes the first principal components, fitted on the embeddings of a sample of texts, from every embedding
(CMLM, section 5: they encode the language of a text). Fit them on texts of one language for an encoder of that language,
or on mixed texts for a multilingual encoder. The second centres the embeddings and gives all directions the same variance;
the third scales only the first 20 components down, to the variance of the 20th.
"""

from __future__ import annotations

import logging
import shutil
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.common.cli import Parser, add_trust, positive
from mirror.common.errors import InputError, run_main
from mirror.common.logging import configure_logging


if TYPE_CHECKING:
    import numpy as np
    from sentence_transformers.models import Dense

logger = logging.getLogger(__name__)

ALL = 0  # components to whiten


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


def whitening_layer(mean: np.ndarray, matrix: np.ndarray) -> Dense:
    """The linear layer of `mirror.evaluation.components.whiten`.

    Args:
        mean, matrix: (D,) and (D, D), of `fit_whitening`.
    """
    import torch

    from mirror.modeling.dense_layers import dense

    return dense(torch.from_numpy(matrix.T), torch.from_numpy(-mean @ matrix), torch.nn.Identity())


def remove_components_in_checkpoint(source: str, target: str, texts: Sequence[str], num_components: int) -> np.ndarray:
    """Copy the checkpoint `source` to `target` and remove the principal components of `texts` from its embeddings.

    Returns:
        The components, (num_components, D), with orthonormal rows.

    Raises:
        InputError: `source` is not a checkpoint folder, `target` exists, or there are fewer texts than components.
    """
    check_folders(source, target)

    from mirror.evaluation.components import fit_components  # imported late to keep --help fast

    components = fit_components(full_vectors(source, texts), num_components)
    copy_with_layer(source, target, removal_layer(components), texts, f"removed {num_components} component(s)")
    return components


def whiten_checkpoint(source: str, target: str, texts: Sequence[str], num_components: int | None = None) -> None:
    """Copy the checkpoint `source` to `target` and whiten its embeddings, fitted on those of `texts`.

    Args:
        num_components: soft whitening of the first N (`mirror.evaluation.components.fit_whitening`); by default all.

    Raises:
        InputError: `source` is not a checkpoint folder, `target` exists, or the texts are too few.
    """
    check_folders(source, target)

    from mirror.evaluation.components import fit_whitening  # imported late to keep --help fast

    layer = whitening_layer(*fit_whitening(full_vectors(source, texts), num_components))
    what = f"softly whitened {num_components} component(s)" if num_components else "whitened all components"
    copy_with_layer(source, target, layer, texts, what)


def full_vectors(source: str, texts: Sequence[str]) -> np.ndarray:
    """(N, D) embeddings without the truncation of the checkpoint, which readers apply after all modules."""
    from mirror.modeling.encoder import Encoder

    encoder = Encoder.from_pretrained(source)
    encoder.truncate_dim = None
    return encoder.encode(list(texts))


def copy_with_layer(source: str, target: str, layer: Dense, texts: Sequence[str], what: str) -> None:
    """Copy a checkpoint folder and append a layer, seen to be applied by every reader.

    The copy has no scores, no ONNX export and no place on the Hub: those are of other vectors.

    Args:
        what: what the layer does, for the model card.

    Raises:
        InputError: a reader computes other vectors; nothing is left of the copy.
    """
    from mirror.modeling.checkpoint import verify_encoder
    from mirror.modeling.dense_layers import append_layers
    from mirror.modeling.encoder import Encoder
    from mirror.tools.card_scores import FIGURE, SCORES_FILE
    from mirror.training.manifest import MANIFEST
    from mirror.training.run_record import FILE

    target = Path(target)
    temporary = target.with_name(f"_{target.name}.tmp")
    not_copied = ("checkpoint-*", "onnx", "README.md", MANIFEST, SCORES_FILE, FIGURE)
    shutil.rmtree(temporary, ignore_errors=True)  # of a copy that was killed
    try:
        shutil.copytree(source, temporary, ignore=shutil.ignore_patterns(*not_copied))
        append_layers(temporary, [layer])
        encoder = Encoder.from_pretrained(source)
        expected = Encoder(
            encoder.model,
            encoder.tokenizer,
            encoder.pooling,
            encoder.max_seq_length,
            [*encoder.head, layer],
            encoder.prompt,
            encoder.truncate_dim,
        )
        cosines = verify_encoder(temporary, expected, list(texts)[:8])
        if (temporary / FILE).exists():
            write_card_of_copy(temporary, target.name, what, cosines)
        temporary.replace(target)
        logger.info("%s, fitted on %s texts; saved in %s", what, len(texts), target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_card_of_copy(folder: Path, name: str, what: str, cosines: dict[str, float]) -> None:
    """Record and model card of a finished run, without what was measured on its vectors before `what`."""
    from mirror.tools.model_card import write_card
    from mirror.training.run_record import LATER, RunRecord

    record = RunRecord.load(folder)
    settings = {key: value for key, value in record.settings.items() if key not in ("hub_model_id", "hub_revision")}
    earlier = settings.get("after_training")
    settings["after_training"] = f"{earlier}; {what}" if earlier else what
    no_scores = dict.fromkeys(LATER)
    replace(record, settings=settings, cosine_after_reload=cosines, **no_scores).save(folder)
    write_card(folder, name)


def check_folders(source: str, target: str) -> None:
    """
    Raises:
        InputError: `source` is not a checkpoint folder, or has a pooling that no layer can follow, or `target` exists.
    """
    if not (Path(source) / "modules.json").exists():
        raise InputError(f"{source}: no modules.json; give a checkpoint of this project or of sentence-transformers")

    from mirror.modeling.dense_layers import check_pooling  # imported late to keep --help fast

    check_pooling(Path(source))
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
    folders = args.model_name_or_path, args.output_dir
    if args.whiten is not None:
        whiten_checkpoint(*folders, list(texts), args.whiten or None)
    else:
        remove_components_in_checkpoint(*folders, list(texts), args.num_components)


def parse_arguments() -> Namespace:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--model_name_or_path", metavar="M", required=True, help="checkpoint folder to copy; it is not changed")
    add("--text_file", nargs="+", metavar="F", required=True,
        help="texts to fit the components on; same formats as --train_file of run_mirror.py")  # fmt: skip
    add("--output_dir", metavar="O", required=True, help="folder of the new checkpoint; must not exist")
    add("--text_column", metavar="T", help="column with the text (default: 'text', or the only column)")
    what = parser.add_mutually_exclusive_group().add_argument
    what("--num_components", type=positive, default=1, metavar="N", help="number of components to remove")
    what("--whiten", type=positive, nargs="?", const=ALL, metavar="N",
        help="whiten instead: all components, or softly the first N")  # fmt: skip
    add("--max_samples", type=positive, default=10_000, metavar="N", help="fit them on at most N texts")
    add_trust(parser)
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
