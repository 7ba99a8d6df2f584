"""Principal component removal and whitening, stored in a checkpoint as a linear layer that every library applies.

    python -m mirror.tools.whitening --model_name_or_path out/cmlm --text_file sample.txt --num_components 1 --output_dir out/pcr
    python -m mirror.tools.whitening --model_name_or_path out/mirror --text_file sample.txt --whiten --output_dir out/white
    python -m mirror.tools.whitening --model_name_or_path out/mirror --text_file sample.txt --whiten 20 --output_dir out/soft

The first command removes the first principal components, fitted on the embeddings of a sample of texts, from every embedding
(CMLM, section 5: they encode the language of a text). Fit them on texts of one language for an encoder of that language,
or on mixed texts for a multilingual encoder. The second centers the embeddings and gives all directions the same variance.
The third scales only the first 20 components down, to the variance of the 20th.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mirror.common.cli import Parser, add_trust, configure_logging, positive
from mirror.common.errors import InputError, run_main


logger = logging.getLogger(__name__)


def check_folders(source: str, target: str) -> None:
    """Raise an InputError if `source` is no checkpoint, has a pooling that no layer can follow, or `target` exists."""
    if not (Path(source) / "modules.json").exists():
        raise InputError(f"{source}: no modules.json; give a checkpoint of this project or of sentence-transformers")

    from mirror.modeling.save_checkpoint import check_pooling  # imports torch, which --help and wrong folders must not

    check_pooling(Path(source))
    if Path(target).exists():
        raise InputError(f"--output_dir {target} exists; give a new folder")


def transform_checkpoint(
    source: str, target: str, texts: Sequence[str], num_components: int | None, whiten: bool = False
) -> None:
    """Copy the checkpoint `source` to `target` and append a layer that is fitted on the embeddings of `texts`.

    It removes `num_components` principal components, or with `whiten` it whitens softly by them, or all for None
    (`mirror.evaluation.encoding.fit_whitening`). The copy has no scores, no ONNX models and no repository on the Hub,
    because those belong to other vectors. After an `InputError` (unusable folders, too few texts, a library that computes other vectors) no copy is left.
    """
    check_folders(source, target)
    import numpy as np
    import torch

    from mirror.common.files import MANIFEST
    from mirror.evaluation.encoding import fit_components, fit_whitening
    from mirror.modeling.encoder import Encoder
    from mirror.modeling.save_checkpoint import EXPORTS, append_layers, dense, verify_encoder
    from mirror.training.card import CARD, FIGURE, SCORES_FILE, write_card
    from mirror.training.record import FILE, LATER, RunRecord

    encoder = Encoder.from_pretrained(source)
    # Libraries truncate after all modules, so the layer is fitted on all dimensions.
    truncate_dim, encoder.truncate_dim = encoder.truncate_dim, None
    vectors = encoder.encode(list(texts))  # (N, D)
    if whiten:
        mean, matrix = fit_whitening(vectors, num_components)  # (D,), (D, D)
        bias = torch.from_numpy(-mean @ matrix)
        what = f"softly whitened {num_components} component(s)" if num_components else "whitened all components"
    else:
        components = fit_components(vectors, num_components).astype(np.float64)  # (n, D), orthonormal rows
        matrix, bias = np.eye(vectors.shape[1]) - components.T @ components, None
        what = f"removed {num_components} component(s)"
    layer = dense(torch.from_numpy(matrix.T), bias, torch.nn.Identity()).to(encoder.model.device)
    encoder.head, encoder.truncate_dim = torch.nn.Sequential(*encoder.head, layer).eval(), truncate_dim

    target = Path(target)
    temporary = target.with_name(f"_{target.name}.tmp")
    not_copied = ("checkpoint-*", *EXPORTS, CARD, MANIFEST, SCORES_FILE, FIGURE)
    shutil.rmtree(temporary, ignore_errors=True)  # a copy that was killed may have left it
    try:
        shutil.copytree(source, temporary, ignore=shutil.ignore_patterns(*not_copied))
        append_layers(temporary, [layer])
        cosines = verify_encoder(temporary, encoder, list(texts)[:8])
        if (temporary / FILE).exists():  # a finished run: its card, without what was measured on the earlier vectors
            record = RunRecord.load(temporary)
            settings, unmeasured = record.settings, dict.fromkeys(LATER)
            settings["after_training"] = "; ".join(filter(None, (settings.get("after_training"), what)))
            for key in ("hub_model_id", "hub_revision"):
                settings.pop(key, None)
            replace(record, cosine_after_reload=cosines, **unmeasured).save(temporary)
            write_card(temporary, target.name)
        temporary.replace(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    logger.info("%s, fitted on %s texts. Saved to %s", what.capitalize(), f"{len(texts):,}", target)


def main() -> None:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--model_name_or_path", metavar="M", required=True, help="Path to the checkpoint to copy. It is not changed.")
    texts = "Path to the texts to fit the components on, in the formats of --train_file of run_mirror.py."
    add("--text_file", nargs="+", metavar="F", required=True, help=texts)
    add("--output_dir", metavar="O", required=True, help="Path to the new checkpoint. It must not exist.")
    add("--text_column", metavar="T", help="Column with the text (default: 'text', or the only column).")
    what = parser.add_mutually_exclusive_group().add_argument
    what("--num_components", type=positive, default=1, metavar="N", help="Number of components to remove.")
    components = "Whether to whiten instead: all components, or softly the first N (default: no)."
    what("--whiten", type=positive, nargs="?", const=0, metavar="N", help=components)  # 0: all
    add("--max_samples", type=positive, default=10_000, metavar="N", help="Maximum number of texts to fit on.")
    add_trust(parser)
    args = parser.parse_args()
    configure_logging()
    check_folders(args.model_name_or_path, args.output_dir)  # before the texts are read
    from mirror.common import trust
    from mirror.data.corpus import load_texts
    from mirror.data.source import CorpusSource

    trust.grant(args.allow_pickle, args.trust_remote_code)
    source = CorpusSource(train_file=args.text_file, text_column=args.text_column, max_train_samples=args.max_samples)
    texts = load_texts(source)
    whiten = args.whiten is not None
    count = args.whiten or None if whiten else args.num_components
    transform_checkpoint(args.model_name_or_path, args.output_dir, texts, count, whiten)


if __name__ == "__main__":
    run_main(main)
