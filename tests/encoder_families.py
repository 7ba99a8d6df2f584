"""Every masked LM of transformers, and decoders, tiny. `python -m tests.encoder_families` writes docs/encoders.md from them."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoModel, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from mirror.modeling.packing import TOLERANCE, packing_unsupported_reason
from tests.decoders import tiny_decoder


PAGE = Path(__file__).resolve().parents[1] / "docs" / "encoders.md"
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
SIZES |= {
    "max_position_embeddings": 80,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}


class Family(NamedTuple):
    """A native model type."""

    name: str
    example: str
    settings: dict = {}  # noqa: RUF012


FAMILIES = {
    "albert": Family("ALBERT", "albert/albert-base-v2", {"embedding_size": 16}),
    "bert": Family("BERT", "google-bert/bert-base-uncased"),
    "big_bird": Family("BigBird", "google/bigbird-roberta-base", {"attention_type": "original_full"}),
    "camembert": Family("CamemBERT", "almanach/camembert-base"),
    "convbert": Family("ConvBERT", "YituTech/conv-bert-base", {"embedding_size": 32}),
    "data2vec-text": Family("data2vec", "facebook/data2vec-text-base"),
    "deberta": Family("DeBERTa", "microsoft/deberta-base"),
    "deberta-v2": Family("DeBERTa v2, v3", "microsoft/deberta-v3-base"),
    "distilbert": Family(
        "DistilBERT", "distilbert/distilbert-base-uncased", {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
    ),
    "electra": Family("ELECTRA", "google/electra-base-discriminator", {"embedding_size": 16}),
    "ernie": Family("ERNIE", "nghuyong/ernie-3.0-base-zh"),
    "eurobert": Family("EuroBERT", "EuroBERT/EuroBERT-210m", {"mask_token_id": 4, "num_key_value_heads": 2}),
    "flaubert": Family("FlauBERT", "flaubert/flaubert_base_uncased", {"emb_dim": 32, "n_layers": 2, "n_heads": 4}),
    "fnet": Family("FNet", "google/fnet-base"),
    "gte": Family("GTE", "alibaba-nlp-community/gte-multilingual-base"),
    "ibert": Family("I-BERT", "kssteven/ibert-roberta-base"),
    "jina_embeddings_v3": Family("jina-embeddings-v3", "jinaai/jina-embeddings-v3-hf"),
    "longformer": Family("Longformer", "allenai/longformer-base-4096", {"attention_window": 4}),
    "luke": Family("LUKE", "studio-ousia/luke-base", {"entity_vocab_size": 10, "entity_emb_size": 8}),
    "megatron-bert": Family("Megatron-BERT", "nvidia/megatron-bert-uncased-345m"),
    "mobilebert": Family(
        "MobileBERT",
        "google/mobilebert-uncased",
        {"embedding_size": 32, "true_hidden_size": 32, "intra_bottleneck_size": 32},
    ),
    "modernbert": Family(
        "ModernBERT",
        "answerdotai/ModernBERT-base",
        {"local_attention": 8, "global_attn_every_n_layers": 2, "cls_token_id": 2, "sep_token_id": 3},
    ),
    "mpnet": Family("MPNet", "microsoft/mpnet-base", {"pad_token_id": 1}),  # its own, whatever the configuration says
    "mra": Family("MRA", "uw-madison/mra-base-512-4"),
    "nomic_bert": Family("NomicBERT", "nomic-ai/nomic-embed-text-v1.5"),
    "nystromformer": Family("Nystromformer", "uw-madison/nystromformer-512"),
    "rembert": Family("RemBERT", "google/rembert", {"input_embedding_size": 16, "output_embedding_size": 16}),
    "roberta": Family("RoBERTa", "FacebookAI/roberta-base"),
    "roberta-prelayernorm": Family("RoBERTa, norm first", "andreasmadsen/efficient_mlm_m0.40"),
    "roc_bert": Family(
        "RoCBert", "weiweishi/roc-bert-base-zh", {"enable_pronunciation": False, "enable_shape": False}
    ),
    "roformer": Family("RoFormer", "junnyu/roformer_chinese_base", {"embedding_size": 32}),
    "squeezebert": Family("SqueezeBERT", "squeezebert/squeezebert-uncased", {"embedding_size": 32}),
    "ultrabert": Family("UltraBERT", "dmis-lab/UltraBERT-150M", {"sliding_window": 4}),
    "xlm": Family("XLM", "FacebookAI/xlm-mlm-en-2048", {"emb_dim": 32, "n_layers": 2, "n_heads": 4}),
    "xlm-roberta": Family("XLM-RoBERTa", "FacebookAI/xlm-roberta-base"),
    "xlm-roberta-xl": Family("XLM-RoBERTa-XL", "facebook/xlm-roberta-xl"),
    "xmod": Family("X-MOD", "facebook/xmod-base", {"languages": ["en_XX"], "default_language": "en_XX"}),
    "yoso": Family("YOSO", "uw-madison/yoso-4096"),
}
# Masked LMs to transformers, but not encoders of text for this project.
LEFT_OUT = {
    "bart": "with a decoder",
    "mbart": "with a decoder",
    "mvp": "with a decoder",
    "esm": "proteins",
    "esmc": "proteins",
    "layoutlm": "texts with their place on a page",
    "tapas": "tables",
    "modernvbert": "texts with pictures",
    "neomme": "texts with pictures",
    "ultravbert": "texts with pictures",
    "perceiver": "bytes; its vectors are those of latents, not of tokens",
    "reformer": "hashed attention of a language model",
    "funnel": "not tried",
}
HEAD = """\
# Which encoders work

For users who choose a base model: the masked LMs that transformers {version} includes, decoders, and static encoders. None of them
needs remote code (`--trust_remote_code`). Each was made tiny with random weights and tried as at the start of a run. *Read back* means:
trained, saved, and read by transformers and sentence-transformers with equal vectors in `tests/modeling/test_encoder_families.py`,
`test_decoders.py` and `test_static.py`. `python -m tests.encoder_families` writes this page, and a test compares it.

- **packed**: trained without padding. All texts of a batch are in one row, with attention within each text only. Vectors and gradients
  are those of padded texts. Every run decides this at its start (`--packing auto`), by a trial on the model itself that reaches past its
  local window, if it has one.
- **padded**: gives the same vectors, but computes padding too ([cost](performance.md#training)).
  If padding changes the vector of a text, the vector depends on the other texts of its batch: choose another encoder.
- **refused** before anything is trained: encoders with a decoder (`bart`, `mbart`, `mvp`, T5), and decoders of another kind than
  below, such as Mamba.

## Decoders and static encoders

| encoder | for example | pooling | how it is trained | read back |
| --- | --- | --- | --- | --- |
"""
DECODER_ROWS = {
    "qwen3": ("Qwen3-Embedding", "Qwen/Qwen3-Embedding-0.6B", "last"),
    "embeddinggemma": ("EmbeddingGemma", "google/embeddinggemma-300m", "mean"),
    "llama": ("Llama", "meta-llama/Llama-3.2-1B", "last"),
    "mistral": ("Mistral", "intfloat/e5-mistral-7b-instruct", "last"),
    "gemma2": ("Gemma 2", "BAAI/bge-multilingual-gemma2", "last"),
    "gemma3": ("Gemma 3", "google/gemma-3-1b-pt", "last"),
}
MIDDLE = """\
| StaticEmbedding | sentence-transformers/static-retrieval-mrl-en-v1 | mean | padded: a static encoder has no attention | yes |
| model2vec | minishlab/potion-base-8M | mean | padded: a static encoder has no attention | yes, by model2vec too |

Their prompts are kept: `Encoder.encode_query` and `encode_document` give the vectors of sentence-transformers to 1e-5, and `--pair_prompts
query document` puts a prompt before each side of a pair in training. Prompts that the checkpoint leaves out of its pooling
(`include_prompt: false`) are left out in training too.

**A transcript**, of tiny checkpoints with random weights and the modules and prompts of the real ones (`save_embedder` in `tests/decoders.py`), trained on a
table of 700 questions and answers. Lines of the log, wrapped; the others are left out:

    $ python run_mirror.py --model_name_or_path tiny-qwen3-embedding --train_file pairs.tsv --pair_columns question answer \\
        --pair_prompts query document --per_device_train_batch_size 20 --output_dir out/qwen3
    base: model is an encoder already (last pooling, normalize); settings for adapting: --augmentation none --max_seq_length 64;
      the others of the paper for sentences, except: at most a tenth held out, no repeated texts (--keep_duplicates)
    packing: on, no padding
    Saved to out/qwen3 (last pooling), embeddings verified with transformers AutoModel and pool() and sentence-transformers

    $ python run_mirror.py --model_name_or_path tiny-embeddinggemma --train_file pairs.tsv --pair_columns question answer \\
        --pair_prompts query document --per_device_train_batch_size 20 --output_dir out/gemma
    base: model is an encoder already (mean pooling, dense, dense, normalize); settings for adapting: --augmentation none
      --max_seq_length 64; the others of the paper for sentences, except: a mean without padding, ...
    packing: on, no padding
    Saved to out/gemma (mean pooling), embeddings verified with transformers AutoModel and pool() and sentence-transformers

Afterwards `encode_query` and `encode_document` of both folders differ from sentence-transformers' by 0.

**A language model becomes an encoder.** Give a raw decoder such as Qwen/Qwen3-0.6B as the base model. Its texts are pooled by their last
token, and the noise is deleted words, because it has no mask token. `--attention_direction bidirectional` lets every token see the
whole text, as in LLM2Vec, and pools by the mean. A model of more than a billion weights is trained by low-rank updates (`--lora_rank`). For
large batches in little memory add `--mini_batch_size` and `--gradient_checkpointing`.

**Which libraries read a bidirectional one.** The direction is `is_causal: false` in its config.json, which transformers reads since
version 5.2. Earlier versions compute causal attention from the same files, without an error. sentence-transformers 6 warns of that.
EmbeddingGemma has a name of its own for it (`use_bidirectional_attention`), which transformers reads since 4.56.2.

**A static encoder** has no dropout. Its default learning rate is larger (`--learning_rate`). model2vec leaves unknown tokens out of the mean,
and sentence-transformers and this project do not, so the vectors of texts with unknown tokens differ between the two libraries.

**Long texts.** An encoder is trained on texts of its own length, and on passages of documents of 128 tokens. `--level passage` allows
512 for both. Memory grows with the number of tokens in a batch: lower `--per_device_train_batch_size` or set `--mini_batch_size`.

**Models that need remote code** are refused without `--trust_remote_code`. Instead of NeoBERT choose ModernBERT or EuroBERT, instead of
nomic-embed-text-v2-moe choose nomic-embed-text-v1.5 or jina-embeddings-v3.

## Masked language models

| encoder | model type | for example | how it is trained | read back |
| --- | --- | --- | --- | --- |
"""
TAIL = """
MPNet and DeBERTa add a learned function of the distance of two tokens to the products of their attention, inside their own attention
modules. `mirror/modeling/attention.py` has subclasses of these. MPNet's attention is packed, which trains all-mpnet-base-v2 at 2.0 times the speed of padded rows ([performance](performance.md#training)). DeBERTa's is padded, with its three projections, and
everything else in its layers is packed: 1.27 times the speed of padded rows with random weights in the shape of DeBERTa-v3-base, 6 layers (2.36 and 2.99 s
a step, two cores of an AMD EPYC). A DeBERTa with a convolution (v2-xlarge) is padded.

    python benchmarks/train_speed.py --model_name_or_path FOLDER --train_file $S --batch_size 32 --steps 5 --warmup_steps 2 --rounds 2 \\
        --variants ours-bf16 ours-padded-bf16

Not encoders of plain text, though masked LMs to transformers: {left_out}.
"""


def tiny(model_type: str, vocabulary: int = 200) -> PreTrainedModel:
    """Return a model with the same weights at every call, without dropout."""
    torch.manual_seed(0)
    settings = SIZES | {"vocab_size": vocabulary} | FAMILIES[model_type].settings
    return AutoModel.from_config(CONFIG_MAPPING[model_type](**settings)).eval()


def outcome(model_type: str) -> str:
    """Return `packed`, or `padded` and the reason."""
    model = tiny(model_type)
    change = change_by_padding(model)
    reason = packing_unsupported_reason(model, "mean")
    if not reason:
        return "packed"
    why = reason.partition(", relative")[0]  # its number differs from machine to machine
    return f"padded: {why}" + ("; **padding changes the vector of a text**" if change > TOLERANCE else "")


def decoder_outcome(name: str) -> str:
    reason = packing_unsupported_reason(tiny_decoder(name), DECODER_ROWS[name][2])
    return f"padded: {reason}" if reason else "packed"


@torch.no_grad()
def change_by_padding(model: PreTrainedModel) -> float:
    """Return the relative difference of the token vectors of a text alone and beside a longer one."""
    texts = torch.tensor([[2, 5, 6, 7, 8, 3], [2, 9, 3, 0, 0, 0]])
    alone = model(input_ids=texts[1:, :3], attention_mask=torch.ones(1, 3).long()).last_hidden_state[0]
    beside = model(input_ids=texts, attention_mask=(texts > 0).long()).last_hidden_state[1, :3]
    return ((beside - alone).norm() / alone.norm()).item()


def page() -> str:
    rows = []
    for model_type, family in sorted(FAMILIES.items(), key=lambda item: item[1].name.lower()):
        found = outcome(model_type)
        read_back = "no" if "**" in found else "yes"
        rows.append(f"| {family.name} | `{model_type}` | {family.example} | {found} | {read_back} |\n")
    decoders = [f"| {' | '.join(row)} | {decoder_outcome(name)} | yes |\n" for name, row in DECODER_ROWS.items()]
    left_out = ", ".join(f"`{name}` ({why})" for name, why in LEFT_OUT.items())
    head = HEAD.format(version=version("transformers"))
    return head + "".join(decoders) + MIDDLE + "".join(rows) + TAIL.format(left_out=left_out)


def missing() -> set[str]:
    """Return model types that this list lacks."""
    return set(MODEL_FOR_MASKED_LM_MAPPING_NAMES) - FAMILIES.keys() - LEFT_OUT.keys()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
