"""Whether the scores of a study bear out what the paper concludes, by confidence intervals over seeds."""

from __future__ import annotations

from collections.abc import Sequence

from scipy.stats import t

from mirror.studies.cells import Claim, Study
from mirror.studies.table import Beside, Score, Scores, published_scores, shown_columns


AGREES, DISAGREES, NOT_SHOWN, ONE_SEED = "agrees", "does not agree", "not shown", "one seed"
PAPERS_BERT = "bert-base-uncased"  # of several models that the paper has, the one that stands beside others


def difference(higher: Score, lower: Score) -> Score | None:
    """Return higher - lower for each seed that both have; the base model's only score is compared with every seed."""
    ours, theirs = higher.by_seed, lower.by_seed
    seeds = [seed for seed in ours if seed in theirs or None in theirs] or [seed for seed in theirs if None in ours]
    return Score({s: ours.get(s, ours.get(None)) - theirs.get(s, theirs.get(None)) for s in seeds}) if seeds else None


def interval(score: Score, confidence: float = 0.95) -> tuple[float, float] | None:
    """Return Student's confidence interval of the mean over seeds, or None for a single value."""
    if score.std is None:
        return None
    half = t.ppf((1 + confidence) / 2, len(score.values) - 1) * score.std / len(score.values) ** 0.5
    return score.mean - half, score.mean + half


def judge(gain: Score) -> str:
    """Return whether a difference is above zero, below it, neither is shown, or cannot be shown by one seed.

    A difference between scores of base models has no seed, so that its sign decides.
    """
    limits = (gain.mean, gain.mean) if None in gain.by_seed else interval(gain)
    if limits is None:
        return ONE_SEED
    low, high = limits
    return AGREES if low > 0 else DISAGREES if high < 0 else NOT_SHOWN


def verdict(judgements: Sequence[str]) -> str:
    """Return one verdict for all that can be tested: agrees, agrees in part, does not agree, or not testable."""
    tested = [judgement for judgement in judgements if judgement != ONE_SEED]
    if not tested:
        return "not testable with one seed"
    agreeing = tested.count(AGREES)
    return DISAGREES if not agreeing else AGREES if agreeing == len(tested) else "agrees in part"


def judged_claims(study: Study, scores: Scores) -> dict[Claim, tuple[Score, str]]:
    """Return the difference and the judgement of each of the paper's conclusions whose two rows have scores."""
    judged = {}
    for claim in study.claims:
        ours = [scores.get(row, {}).get(claim.column) for row in (claim.higher, claim.lower)]
        gain = difference(*ours) if all(ours) else None
        if gain is not None:
            judged[claim] = gain, judge(gain)
    return judged


def format_difference(gain: Score) -> str:
    """Format a mean difference with its interval: `+0.3400 (+0.0667 to +0.6133)`."""
    limits = interval(gain)
    return f"{gain.mean:+.4f}" + (f" ({limits[0]:+.4f} to {limits[1]:+.4f})" if limits else "")


def format_claims(study: Study, scores: Scores, beside: Beside) -> str:
    """Format a Markdown table of the paper's conclusions that have scores, and a verdict; empty if none has."""
    judged = judged_claims(study, scores)
    if not judged:
        return ""
    labels = shown_columns(study, scores)
    lines = []
    for claim, (gain, judgement) in judged.items():
        theirs = printed_difference(study, claim, labels, beside)
        printed = "" if theirs is None else f"{theirs:+.4f}"
        lines.append(f"| {claim} | {printed} | {format_difference(gain)} | {judgement} |")
    judgements = [judgement for _, judgement in judged.values()]
    header = "| difference | in the paper | here, 95% interval over seeds | |\n| --- | ---: | ---: | --- |"
    return "\n".join(("", header, *lines, "", f"Verdict: {verdict(judgements)} ({count(judgements)}).", ""))


def count(judgements: Sequence[str]) -> str:
    """Return how many judgements agree: `3 of 4`."""
    untested = judgements.count(ONE_SEED)
    return f"{judgements.count(AGREES)} of {len(judgements)}" + (f"; {untested} with one seed" if untested else "")


def printed_difference(study: Study, claim: Claim, labels: Sequence[str], beside: Beside) -> float | None:
    """Return the published difference of the base model, or else of the paper's BERT or first model that has both rows.

    Args:
        labels: the shown columns; an average is over the same ones.
    """
    for rows in (beside, study.published.get(PAPERS_BERT, {}), *study.published.values()):
        ours = [published_scores(study, labels, rows.get(row, {})) for row in (claim.higher, claim.lower)]
        if all(claim.column in found for found in ours):
            return ours[0][claim.column] - ours[1][claim.column]
    return None
