"""Names of the tasks' data sets as people and the Hub know them. Knows nothing of files and scores."""

from __future__ import annotations

import re


# task -> name, and the Hub's id, configuration and split where the set is on the Hub
DATASETS: dict[str, tuple[str, ...]] = {
    "sts12": ("STS 2012", "mteb/sts12-sts", "default", "test"),
    "sts13": ("STS 2013", "mteb/sts13-sts", "default", "test"),
    "sts14": ("STS 2014", "mteb/sts14-sts", "default", "test"),
    "sts15": ("STS 2015", "mteb/sts15-sts", "default", "test"),
    "sts16": ("STS 2016", "mteb/sts16-sts", "default", "test"),
    "stsb": ("STS Benchmark (test)", "mteb/stsbenchmark-sts", "default", "test"),
    "stsb_dev": ("STS Benchmark (dev)", "mteb/stsbenchmark-sts", "default", "validation"),
    "sickr": ("SICK-R (test)",),
    "sickr_full": ("SICK-R (all pairs)", "mteb/sickr-sts", "default", "test"),
    "sts17_es": ("STS 2017 (Spanish)", "mteb/sts17-crosslingual-sts", "es-es", "test"),
    "sts17_ar": ("STS 2017 (Arabic)", "mteb/sts17-crosslingual-sts", "ar-ar", "test"),
    "sts_ru": ("Russian STS Benchmark", "ai-forever/ru-stsbenchmark-sts", "default", "test"),
    "simlex999": ("SimLex-999",),
    "simverb3500": ("SimVerb-3500",),
    "men": ("MEN",),
    "ws353": ("WordSim-353",),
    "ws353_sim": ("WordSim-353 (similarity)",),
    "ws353_rel": ("WordSim-353 (relatedness)",),
    "rw": ("Stanford Rare Words",),
    "rg65": ("RG-65",),
    "mturk287": ("MTurk-287",),
    "mturk771": ("MTurk-771",),
    "bel_ncbi": ("NCBI Disease",),
    "bel_bc5cdr_disease": ("BC5CDR (diseases)",),
    "bel_bc5cdr_chemical": ("BC5CDR (chemicals)",),
    "bel_askapatient": ("AskAPatient",),
    "bel_cometa": ("COMETA",),
    "bel_cometa_zero_shot": ("COMETA (zero-shot split)",),
    "qnli": ("QNLI (dev)", "nyu-mll/glue", "qnli", "validation"),
    "qqp_cosine": ("Quora Question Pairs", "nyu-mll/glue", "qqp", "validation"),
    "transfer_mr": ("SentEval MR",),
    "transfer_cr": ("SentEval CR",),
    "transfer_subj": ("SentEval SUBJ",),
    "transfer_mpqa": ("SentEval MPQA",),
    "transfer_sst2": ("SentEval SST-2",),
    "transfer_trec": ("SentEval TREC",),
    "transfer_mrpc": ("SentEval MRPC",),
    "transfer_sicke": ("SentEval SICK-E",),
    "transfer_sickr": ("SentEval SICK-R",),
    "amazon_zero_shot": ("Amazon reviews, Webis CLS-10 (frozen)",),
    "amazon_zero_shot_tuned": ("Amazon reviews, Webis CLS-10 (tuned)",),
    "amazon_by_domain": ("Amazon reviews, Webis CLS-10 (frozen, by domain)",),
    "tatoeba_projection": ("Tatoeba (fra, deu, rus and spa with eng)",),
    "language_bias": ("PAWS-X", "google-research-datasets/paws-x"),
    "isotropy": ("isotropy of sentence embeddings",),
    "docs_search": ("docstrings of installed packages (test)",),
    "docs_search_dev": ("docstrings of installed packages (dev)",),
}
FAMILIES = (
    (r"multisimlex_(\w+)", "Multi-SimLex ({})"),
    (r"bli_joint_(\w+)", "bilingual lexicon induction, one encoder ({})"),
    (r"bli_(\w+)", "bilingual lexicon induction ({})"),
    (r"xlbel_(\w+)", "XL-BEL ({})"),
    (r"xeval_(\w+)", "XEVAL ({})"),
    (r"tatoeba_(\w+)", "Tatoeba ({}-eng)"),
)
FIELDS = ("dataset_name", "dataset_type", "dataset_config", "dataset_split")


def dataset_of(task: str) -> dict[str, str]:
    """The data set of a task, as the fields of `huggingface_hub.EvalResult`; its type is the task where the Hub has no id."""
    if task in DATASETS:
        return {"dataset_type": task} | dict(zip(FIELDS, DATASETS[task], strict=False))
    for pattern, name in FAMILIES:
        if match := re.fullmatch(pattern, task):
            return {"dataset_name": name.format(match[1].replace("_", "-")), "dataset_type": task}
    return {"dataset_name": task, "dataset_type": task}
