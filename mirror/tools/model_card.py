"""The model card (README.md) of a checkpoint: description, metadata for the Hub, scores and settings of the run.

    python -m mirror.tools.model_card out/mirror --results before/results.json after/results.json
    python -m mirror.tools.model_card out/mirror --hub_model_id me/my-encoder --language en

rewrites the model card of a finished run, with scores of run_eval.py (of the checkpoint, or of the base model and of
the checkpoint), with another model name, or with the languages of the texts, where the base model's card does not name
them. The card is built only from files in the folder, and contains no training
text, token or path.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mirror.common.cli import Parser
from mirror.common.errors import InputError, run_main
from mirror.tools.card_facts import cmlm_facts, corpus_facts, kept_facts, mirror_facts, own_text_facts
from mirror.tools.card_scores import eval_results, read_scores, score_table, scores_of_results, write_scores
from mirror.training.run_record import LANGUAGE, RunRecord


TEMPLATES = Path(__file__).parent / "templates"
POOLING_DESCRIPTIONS = {
    "cls": "the last layer's vector of the first token",
    "mean": "the mean of the last layer over the attention mask",
    "max": "the maximum of the last layer over the attention mask",
    "pooler": "its `pooler_output`",
    "mean_padded": "the mean of the last layer over all positions, padding included",
    "first_last_mean": "the mean of the first and last layers' average over the attention mask",
}
SNIPPETS = {
    "cls": "output.last_hidden_state[:, 0]",
    "mean": "(output.last_hidden_state * mask).sum(1) / mask.sum(1)",
    "max": 'output.last_hidden_state.masked_fill(mask == 0, float("-inf")).amax(1)',
    "pooler": "output.pooler_output",
    "mean_padded": "output.last_hidden_state.mean(1)",
    "first_last_mean": "((output.hidden_states[1] + output.last_hidden_state) / 2 * mask).sum(1) / mask.sum(1)",
}
NOTES = {
    "mean_padded": "This model was trained with padding in the mean. Libraries other than this project "
    "exclude padding from the mean and give different vectors.",
    "first_last_mean": "This model was trained on the mean of its first and last layers. Libraries other than "
    "this project use the last layer only and give different vectors.",
}
UNITS = {"word": "words", "phrase": "words and phrases", "sentence": "sentences"}


def write_card(folder: str | Path, name: str | None = None) -> None:
    """Write `README.md` of the checkpoint in `folder` from its `train_results.json` and, if present, `scores.json`.

    Args:
        name: name of the model on the card; default: the --hub_model_id of the run, or the name of the folder.

    Raises:
        InputError: `folder` is not the output of a finished run.
    """
    ModelCard(render_card(folder, name)).save(Path(folder) / "README.md")


def render_card(folder: str | Path, name: str | None = None) -> str:
    """The text of the card that `write_card` writes."""
    folder = Path(folder)
    from mirror.modeling.checkpoint import stored_pooling  # imported late to keep --help fast
    from mirror.modeling.checkpoint_settings import checkpoint_settings, choose_prompt

    record, scores = RunRecord.load(folder), read_scores(folder)
    settings, is_cmlm = record.settings, record.method == "cmlm"
    name = _plain(name or settings.get("hub_model_id") or folder.resolve().name)
    base, pooling = record.run["base_model"], stored_pooling(folder)
    width, dense = _output_layers(folder)
    prompt = choose_prompt(str(folder), checkpoint_settings(str(folder)), None, None)
    text = _environment().get_template("cmlm.md.jinja" if is_cmlm else "mirror.md.jinja").render(
        metadata=_metadata(name, record, scores),
        name=name,
        base=_plain(base["hub_id"] or base["name"]),
        license=_plain(base["license"].get("license_name") or base["license"].get("license") or ""),
        unit=UNITS[settings.get("level", "sentence")],
        width=width,
        max_seq_length=_read_json(folder, "sentence_bert_config.json")["max_seq_length"],
        pooling_description=POOLING_DESCRIPTIONS[pooling],
        snippet=None if dense and pooling != "pooler" else SNIPPETS[pooling],
        texts=f"[{prompt + 'a text'!r}, {prompt + 'another text'!r}]" if prompt else '["a text", "another text"]',
        normalized=_modules(folder, "Normalize"),
        padding='padding="max_length"' if pooling == "mean_padded" else "padding=True",
        note=NOTES.get(pooling),
        facts=cmlm_facts(record) if is_cmlm else mirror_facts(record),
        corpus={} if is_cmlm else corpus_facts(record.corpus) | own_text_facts(record.own_text, record.own_text_together) | kept_facts(record.kept),
        readers=record.cosine_after_reload | _onnx_readers(folder),
        int8_scores=_int8_scores(folder),
        scores=score_table(scores),
    )  # fmt: skip
    return str(ModelCard(text))  # parses the metadata: the Hub would refuse invalid ones


def name_on_unedited_card(folder: str | Path) -> str | None:
    """The name of the model on the card of a finished run; None if somebody edited the card, or there is none."""
    path = Path(folder) / "README.md"
    card = path.read_text(encoding="utf-8") if path.exists() else ""
    heading = re.search(r"^# (.+)$", card, re.MULTILINE)
    return heading[1] if heading and card.strip() == render_card(folder, heading[1]).strip() else None


def _metadata(name: str, record: RunRecord, scores: dict) -> str:
    """The YAML front matter of the card."""
    base, dataset, results = record.run["base_model"], record.run["dataset"], eval_results(scores)
    return ModelCardData(
        language=record.run.get("language") or None,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        base_model=base["hub_id"],
        datasets=[dataset] if dataset else None,
        tags=_tags(record),
        model_name=name if results else None,
        eval_results=results or None,
        **base["license"],
    ).to_yaml()


def _tags(record: RunRecord) -> list[str]:
    """Those that sentence-transformers 5 writes, and the method."""
    tags = ["sentence-transformers", "sentence-similarity", "feature-extraction", "dense", "generated_from_trainer"]
    if "rows" in record.corpus:
        tags.append(f"dataset_size:{record.corpus['rows']}")
    if "loss" in record.settings:
        tags.append(f"loss:{record.settings['loss']}")
    return [*tags, "cmlm" if record.method == "cmlm" else "mirror-bert"]


def _plain(text: str) -> str:
    """A name that others chose, without the characters that mean something in Markdown or HTML."""
    return re.sub(r"[^\w./ +-]", "_", text)


def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip


def _output_layers(folder: Path) -> tuple[int, bool]:
    """The embedding dimension, and whether dense layers follow the pooling (a pooler counts as one)."""
    if dense := _modules(folder, "Dense"):
        return _read_json(folder, f"{dense[-1]}/config.json")["out_features"], True
    return _read_json(folder, "1_Pooling/config.json")["word_embedding_dimension"], False


def _modules(folder: Path, kind: str) -> list[str]:
    """The folders of the modules of sentence-transformers whose type is `kind`."""
    return [module["path"] for module in _read_json(folder, "modules.json") if module["type"].endswith(f".{kind}")]


def _onnx_readers(folder: Path) -> dict[str, float]:
    """Lowest cosines of the ONNX models to the checkpoint, if `mirror.tools.onnx_export` ran on this folder."""
    return {
        f"ONNX Runtime, {name}, on {measured['texts']} texts": measured["lowest_cosine"]
        for name, measured in _onnx_report(folder).items()
    }


def _int8_scores(folder: Path) -> dict[str, str]:
    """Scores of the 8-bit ONNX model by task, if `mirror.tools.onnx_export` evaluated it."""
    return {
        task: f"{score['copy']:.4f}, checkpoint {score['checkpoint']:.4f} ({score['copy'] - score['checkpoint']:+.4f})"
        for measured in _onnx_report(folder).values()
        for task, score in measured.get("scores", {}).items()
    }


def _onnx_report(folder: Path) -> dict[str, dict]:
    return _read_json(folder, "onnx/export.json") if (folder / "onnx" / "export.json").exists() else {}


def _read_json(folder: Path, filename: str) -> dict | list:
    try:
        return json.loads((folder / filename).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: no readable {filename}; give the --output_dir of a finished run") from error


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("folder", metavar="OUT", help="the --output_dir of a finished run")
    parser.add_argument(
        "--results",
        nargs="+",
        metavar="F",
        help="results.json of run_eval.py for the checkpoint, or for the base model and the checkpoint",
    )
    parser.add_argument("--hub_model_id", metavar="ID", help="name of the model on the card")
    parser.add_argument("--language", nargs="+", metavar="CODE", help="languages of the texts, such as en de")
    args = parser.parse_args()
    record = RunRecord.load(args.folder)
    if unknown := [code for code in args.language or [] if not LANGUAGE.fullmatch(code)]:
        parser.error(f"--language {unknown[0]}: not a language code; use codes such as en, de or multilingual")
    if args.results:
        if len(args.results) > 2:
            parser.error("--results takes one file, or two: before and after training")
        write_scores(args.folder, scores_of_results(args.results, Path(args.folder)))
    if args.language:
        replace(record, run=record.run | {"language": args.language}).save(args.folder)
    write_card(args.folder, args.hub_model_id)


if __name__ == "__main__":
    run_main(main)
