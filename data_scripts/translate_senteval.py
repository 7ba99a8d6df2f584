"""Translate SentEval's files with any translation model: CMLM's XEVAL, which was not released.

    python data_scripts/translate_senteval.py --model_name_or_path Helsinki-NLP/opus-mt-en-de --language de --data_dir data
    python data_scripts/translate_senteval.py --model_name_or_path facebook/nllb-200-distilled-600M --language sw \
        --source_code eng_Latn --target_code swh_Latn --data_dir data
    python data_scripts/translate_senteval.py --model_name_or_path google-t5/t5-small --language fr \
        --prefix "translate English to French: " --data_dir data

Writes `xeval/<language>/` of the data folder, which the task `xeval_<language>` reads: the files of `senteval/` and SICK with their
texts translated, and labels and scores as they are. A file that is there is kept, so the same command goes on after an
interruption. A .json file beside each one names the model. CMLM's authors used an industrial service, so scores on these
files are not theirs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mirror.common.cli import Parser, positive
from mirror.common.errors import InputError, library_errors, run_main
from mirror.common.files import atomic_write_text
from mirror.evaluation.task import DataFile
from mirror.evaluation.transfer import tasks_in


TEXTS = ("text", "sentence1", "sentence2")
LANGUAGES = "ar bg de el es fr hi ru sw th tr ur vi zh".split()
Translate = Callable[[Sequence[str]], list[str]]


def main() -> None:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--model_name_or_path", required=True, metavar="M", help="Hub id or folder of a sequence-to-sequence model.")
    add("--language", required=True, choices=LANGUAGES, help="Language to translate to, one of XEVAL.")
    add("--data_dir", required=True, metavar="D", help="Path to the evaluation data, with senteval/ and sts/sickr_*.")
    add("--source_code", metavar="C", help="The model's code of English, such as eng_Latn. (default: none)")
    add("--target_code", metavar="C", help="The model's code of the language, such as swh_Latn. (default: none)")
    add("--prefix", default="", metavar="P", help="Text before each sentence, as T5 needs. (default: none)")
    add("--batch_size", type=positive, default=32, metavar="N", help="Number of sentences per batch.")
    args = parser.parse_args()
    data_dir = Path(args.data_dir)
    files = list(dict.fromkeys(file for task in tasks_in("senteval", "sts") for file in task.files))
    settings = {name: getattr(args, name) for name in ("model_name_or_path", "source_code", "target_code", "prefix")}
    folder = data_dir / "xeval" / args.language
    for file in files:
        if not (data_dir / file.path).is_file():
            raise InputError(f"{data_dir / file.path} is missing; all files of SentEval's nine tasks are needed")
        check_record(folder / Path(file.path).name, settings)
    translate = load(args.model_name_or_path, args.source_code, args.target_code, args.prefix, args.batch_size)
    for file in files:
        count, copied = translate_file(file, data_dir, folder, translate, settings)
        print(f"{folder / Path(file.path).name}: {count:,} texts translated, {copied:,} without a translation copied")


def check_record(path: Path, settings: dict) -> bool:
    """Return whether a file was written with these settings. One that was written with others is an `InputError`."""
    if not path.exists():
        return False
    record = path.with_name(f"{path.name}.json")
    if not record.exists() or json.loads(record.read_text(encoding="utf-8"))["settings"] != settings:
        raise InputError(f"{path} was not made with this model and these codes; move it away first")
    return True


def translate_file(
    file: DataFile, data_dir: Path, folder: Path, translate: Translate, settings: dict
) -> tuple[int, int]:
    """Write a file with its texts translated to `folder`, unless it is there.

    Each distinct text is translated once. A text that the model translates to nothing is copied.

    Returns:
        The numbers of distinct texts that were translated and that were copied.
    """
    path = folder / Path(file.path).name
    if check_record(path, settings):
        return 0, 0
    columns = file.read(data_dir)
    texts = list(dict.fromkeys(text for name in TEXTS for text in columns.get(name, ())))
    found = {text: " ".join(other.split()) for text, other in zip(texts, translate(texts), strict=True)}
    translated = {
        name: [found.get(value) or value for value in values] if name in TEXTS else values
        for name, values in columns.items()
    }
    lines = [tuple(columns), *zip(*translated.values(), strict=True)]
    copied = sum(not other for other in found.values())
    folder.mkdir(parents=True, exist_ok=True)
    record = {"settings": settings, "texts": len(texts), "copied": copied}
    atomic_write_text(path.with_name(f"{path.name}.json"), json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    atomic_write_text(path, "".join("\t".join(line) + "\n" for line in lines))
    return len(texts) - copied, copied


def load(model_name: str, source_code: str | None, target_code: str | None, prefix: str, batch_size: int) -> Translate:
    """Return a function that translates English texts, greedily and in batches of like length.

    Raises:
        InputError: the model cannot be loaded, or its tokenizer does not know a code.
    """
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    flags = {"src_lang": source_code} if source_code else {}
    with library_errors(f"--model_name_or_path {model_name}"):
        tokenizer = AutoTokenizer.from_pretrained(model_name, **flags)
        model = AutoModelForSeq2SeqLM.from_pretrained(model_name).eval()
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    forced = {}
    if target_code:
        code = tokenizer.convert_tokens_to_ids(target_code)
        if code in (None, tokenizer.unk_token_id):
            raise InputError(f"--target_code {target_code}: not a token of {model_name}")
        forced["forced_bos_token_id"] = code

    @torch.inference_mode()
    def translate(texts: Sequence[str]) -> list[str]:
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        found = [""] * len(texts)
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            inputs = [prefix + texts[row] for row in rows]
            batch = tokenizer(inputs, padding=True, truncation=True, max_length=512, return_tensors="pt").to(
                model.device
            )
            ids = model.generate(
                input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], num_beams=1, do_sample=False,
                max_new_tokens=2 * batch["input_ids"].shape[1] + 16, **forced,
            )  # fmt: skip
            for row, text in zip(rows, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
                found[row] = text
        return found

    return translate


if __name__ == "__main__":
    run_main(main)
