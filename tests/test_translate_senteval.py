"""Translation of SentEval: layout, resume, and the files as the task `xeval_de` reads them."""

from __future__ import annotations

import sys

import pytest
import torch
from transformers import AutoTokenizer, BartConfig, BartForConditionalGeneration

from data_scripts import translate_senteval
from mirror.common.errors import InputError
from mirror.evaluation.transfer import tasks_in
from tests.evaluation.folder import task_named, write_tsv


@pytest.fixture
def small_senteval(tmp_path, monkeypatch):
    """Two of the nine tasks, MR and SICK-E, with a few rows, as if they were all."""
    write_tsv(tmp_path / "senteval/mr.tsv", ("split", "text", "label"), [("all", "a red text", 0), ("all", "gone", 1)])
    sick = ("subset", "sentence1", "sentence2", "score", "entailment")
    for part in ("train", "trial", "test"):
        rows = [("SICK", "a red text", f"a {part}", 3.5, "NEUTRAL")]
        write_tsv(tmp_path / f"sts/sickr_{part}.tsv", sick, rows)
    members = [task for task in tasks_in("senteval", "sts", any_rows=True) if task.name[9:] in ("mr", "sicke")]
    monkeypatch.setattr(translate_senteval, "tasks_in", lambda *folders: members)
    return tmp_path


def run(monkeypatch, data_dir, *flags, model="some-model") -> None:
    argv = ["--model_name_or_path", model, "--language", "de", "--data_dir", data_dir, *flags]
    monkeypatch.setattr(sys, "argv", ["translate_senteval.py", *map(str, argv)])
    translate_senteval.main()


def test_texts_are_translated_and_everything_else_is_kept(small_senteval, monkeypatch, capsys):
    asked = []

    def translate(texts):
        asked.append(list(texts))
        return ["" if text == "gone" else f"{text.upper()}\t\nüber" for text in texts]

    monkeypatch.setattr(translate_senteval, "load", lambda *arguments: translate)
    run(monkeypatch, small_senteval)
    folder = small_senteval / "xeval/de"
    assert (folder / "mr.tsv").read_text() == "split\ttext\tlabel\nall\tA RED TEXT über\t0\nall\tgone\t1\n"
    last = (folder / "sickr_test.tsv").read_text().splitlines()[-1]
    assert last == "SICK\tA RED TEXT über\tA TEST über\t3.5\tNEUTRAL"
    assert "mr.tsv: 1 texts translated, 1 without a translation copied" in capsys.readouterr().out
    found = task_named("xeval_de", small_senteval).files
    paths = {file.path for file in found}
    for path in folder.glob("*.tsv"):  # as the task looks for them, and reads them
        assert f"xeval/de/{path.name}" in paths
        next(file for file in found if file.path.endswith(path.name)).read(small_senteval)
    # An interrupted run goes on with the file that is missing.
    (folder / "sickr_trial.tsv").unlink()
    asked.clear()
    run(monkeypatch, small_senteval)
    assert asked == [["a red text", "a trial"]]
    with pytest.raises(InputError, match=r"mr\.tsv was not made with this model and these codes; move it away first"):
        run(monkeypatch, small_senteval, model="another-model")


def test_a_missing_file_is_named_before_a_model_is_loaded(small_senteval, monkeypatch):
    (small_senteval / "sts/sickr_trial.tsv").unlink()
    with pytest.raises(InputError, match=r"sickr_trial\.tsv is missing; all files of SentEval"):
        run(monkeypatch, small_senteval)


def test_a_real_model_translates_in_batches_as_it_does_one_by_one(bert_folder, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.sep_token_id}
    special |= {"bos_token_id": tokenizer.cls_token_id, "decoder_start_token_id": tokenizer.cls_token_id}
    sizes = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    sizes |= {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "d_model": 16, "max_position_embeddings": 600}
    torch.manual_seed(0)
    model = BartForConditionalGeneration(
        BartConfig(vocab_size=len(tokenizer), forced_eos_token_id=None, **special, **sizes)
    )
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    load = translate_senteval.load
    texts = ["red", "a red green blue doctor", "king queen", "milk"]
    one_by_one = [load(str(tmp_path / "model"), None, None, "", 1)([text])[0] for text in texts]
    together = load(str(tmp_path / "model"), None, None, "", 4)(texts)
    # Texts come back in their own order; a batch may only write more, since its limit is that of its longest text. That
    # limit can end a text within a word.
    assert all(batched.startswith(alone) for batched, alone in zip(together, one_by_one, strict=True))
    assert any(one_by_one)
    with pytest.raises(InputError, match="--target_code swh_Latn: not a token of"):
        load(str(tmp_path / "model"), None, "swh_Latn", "", 4)
    with pytest.raises(InputError, match="--model_name_or_path .*nothing"):
        load(str(tmp_path / "nothing"), None, None, "", 4)
