"""Conclusions of the papers as differences between rows: what was published, what a base model has, and a verdict."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf

from mirror.evaluation.published import checkpoint_name
from studies.scores import Base, Score, markdown, published_scores, shown_columns
from studies.study import AVERAGE, Claim, Study, family_of


# Judgements of a difference, then verdicts on all that can be judged.
JUDGEMENTS = ABOVE, UNRESOLVED, BELOW = "as in the paper", "unresolved", "the other way round"
ONE_SEED, NOT_RUN = "one seed", "not run"
AGREES, NOT_CONTRADICTED, MIXED, CONTRADICTED = "agrees", "not contradicted", "mixed", "contradicted"
TOLERANCE = 0.005  # of a difference that no seed changes
PAPERS_BERT = "bert-base-uncased"  # of several models that the paper has, the one that stands beside others


def difference(higher: Score, lower: Score) -> Score | None:
    """Return higher - lower for each seed that both have. The base model's only score is compared with every seed."""
    ours, theirs = higher.by_seed, lower.by_seed
    seeds = [seed for seed in ours if seed in theirs or None in theirs] or [seed for seed in theirs if None in ours]
    return Score({s: ours.get(s, ours.get(None)) - theirs.get(s, theirs.get(None)) for s in seeds}) if seeds else None


def gain_of(base: Base, claim: Claim) -> Score | None:
    """Return the difference between the rows of a claim, or the score of its row if it has one only. None: not run."""
    study, found = base.study, []
    for row in filter(None, (claim.higher, claim.lower)):
        score = base.scores.get(row, {}).get(claim.column)
        if row in study.baselines and row not in study.rows:
            printed = published_scores(study, shown_columns(study, base.scores), study.baselines[row])
            score = Score({None: printed[claim.column]}) if claim.column in printed else None
        found.append(score)
    return None if None in found else difference(*found) if len(found) > 1 else found[0]


def judgements_of(base: Base) -> dict[Claim, str]:
    """Judge each of the paper's conclusions about such a base model whose rows have scores."""
    claims = [claim for claim in base.study.claims if base.is_judged_by(claim)]
    return {claim: judge(gain, claim.within, claim.either_way) for claim in claims if (gain := gain_of(base, claim))}


def judge(gain: Score, within: float = 0.0, either_way: bool = False) -> str:
    """Judge a difference: above zero (or -`within`), below it, neither for sure, or one seed. Without seeds, by `TOLERANCE`.

    With `either_way` it has to be below `within` too.
    """
    limits = (gain.mean - TOLERANCE, gain.mean + TOLERANCE) if None in gain.by_seed else gain.interval
    if limits is None:
        return ONE_SEED
    low, high = limits
    highest = within if either_way else inf
    return ABOVE if -within < low and high < highest else BELOW if high < -within or low > highest else UNRESOLVED


def verdict(judgements: Collection[str]) -> str:
    """Return one of five words for all differences that can be judged, and how many of them are what, or nothing for none."""
    if not judgements:
        return ""
    count = {kind: list(judgements).count(kind) for kind in (*JUDGEMENTS, ONE_SEED)}
    kind = MIXED if count[BELOW] else NOT_CONTRADICTED if count[UNRESOLVED] else AGREES
    if count[BELOW] > count[ABOVE]:
        kind = CONTRADICTED
    if count[ONE_SEED] == len(judgements):
        kind = "not testable with one seed"
    return f"{kind} ({', '.join(f'{number} {each}' for each, number in count.items() if number)})"


def format_differences(study: Study, bases: Mapping[str, Base]) -> str:
    """Format a Markdown table with a line for each of the paper's conclusions, empty if there is none.

    `bases` maps the header of the column of differences to a base model. Without any, only printed differences have lines.
    """
    lines = [["difference", "in the paper", *(cell for name in bases for cell in (name, ""))]]
    by_checkpoint = {checkpoint_name(base.facts["model"]): base for base in bases.values()}
    labels = [shown_columns(study, base.scores) for base in bases.values()]
    for claim in study.claims:
        printed = printed_difference(study, claim, labels[0] if labels else (), tuple(by_checkpoint))
        line = [str(claim), "" if printed is None else f"{printed:+.4f}"]
        gains = [gain_of(by_checkpoint[name], claim) for name in claim.models if name in by_checkpoint]
        across = difference(*gains) if len(gains) == 2 and None not in gains else None
        for name, base in by_checkpoint.items():
            gain, judgement = gain_of(base, claim) if base.is_judged_by(claim) else None, ""
            if across:
                gain = across if name == claim.models[0] else None
            elif not gain and (claim.models or base.is_judged_by(claim)):
                judgement = NOT_RUN
            line += [gain.as_difference(), judge(gain, claim.within, claim.either_way)] if gain else ["", judgement]
        if bases or printed is not None:
            lines.append(line)
    return markdown(lines, (0, *range(3, len(lines[0]), 2))) if len(lines) > 1 else ""


def printed_difference(
    study: Study, claim: Claim, labels: Sequence[str] = (), own: Sequence[str] = ()
) -> float | None:
    """Return the published difference of the first checkpoint that a claim is about and that has both rows.

    Those of the names `own` come first, then the paper's BERT. A row of CMLM's tables is of one checkpoint, so its rows are
    compared across checkpoints. An average is over the columns `labels`, or over all if there is no other.
    """

    def gain(rows: Mapping[str, Mapping[str, float]]) -> float | None:
        for shown in (labels, [*(column.label for column in study.columns), AVERAGE]):
            found = [published_scores(study, shown, rows.get(row, {})) for row in (claim.higher, claim.lower) if row]
            if all(claim.column in each for each in found):
                values = [each[claim.column] for each in found]
                return values[0] - sum(values[1:])
        return None

    if claim.models:
        gains = [gain(study.published.get(model, {})) for model in claim.models]
        return None if None in gains else gains[0] - gains[1]
    names = [name for name in study.published if claim.is_about(name, family_of(name))]
    names.sort(key=lambda name: (name not in own, name != PAPERS_BERT))
    tables = [study.published[name] | study.baselines for name in names]
    if study.is_cmlm:
        tables = [{row: scores for table in [*tables, study.baselines] for row, scores in table.items()}]
    return next((value for table in tables if (value := gain(table)) is not None), None)
