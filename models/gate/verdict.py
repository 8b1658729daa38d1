"""Whether a precision may be served, by its figures, and how a build says so.

With labels their loss decides; without, agreement with FP32 among the inputs that FP32 itself decides.
"""

from __future__ import annotations

from models.data import LEAST
from models.definition import Thresholds
from models.gate.figures import UNDECIDED_MARGIN, Figures

LEAST_DECIDED = 0.5
"""Share of the inputs that FP32 must decide; see UNDECIDED_MARGIN."""
LEAST_R2 = 0.9
"""Of outputs read by sigmoid, beside their agreement: where FP32 says no to all inputs, so does a model that
computes nothing. It allows errors of a third of the spread, as the self-check of INT8 does."""


def judge(figures: Figures, thresholds: Thresholds) -> str | None:
    """None when the precision may be served, else by how much it failed."""
    if figures.mean_cosine is not None:
        return _judge_embeddings(figures, thresholds)
    if labels_decide(figures):
        return _judge_loss(figures, thresholds)
    spread = _judge_spread(figures, thresholds)
    return spread if spread or figures.agreement is None else _judge_agreement(figures, thresholds)


def labels_decide(figures: Figures) -> bool:
    """Whether there are labels, and FP32 knows more of them than one that always gives the same answer."""
    fp32, guess = figures.labelled_accuracy_fp32, figures.labelled_guess
    return fp32 is not None and guess is not None and fp32 > guess


def describe(figures: Figures) -> str:
    """What was seen, in a line, and no more than was shown."""
    if figures.mean_cosine is not None:
        return (
            f"mean cosine {figures.mean_cosine:.4f} to FP32's embeddings, rank correlation "
            f"{figures.rank_correlation:.4f} of their similarities, on {_name_inputs(figures)}"
        )
    if figures.agreement is None:
        return f"R² {figures.explained:.4f} of the outputs to FP32's on {_name_inputs(figures)}"
    return _describe_loss(figures) if labels_decide(figures) else _describe_agreement(figures)


def _judge_spread(figures: Figures, thresholds: Thresholds) -> str | None:
    """Of outputs that are read each by itself; of classes nothing."""
    needed = thresholds.agreement if figures.agreement is None else min(LEAST_R2, thresholds.agreement)
    # Written so that NaN fails too.
    if figures.explained is None or figures.explained >= needed:
        return None
    return (
        f"the outputs differ from FP32's on {_name_inputs(figures)}: R² is {figures.explained:.4f}, at least "
        f"{needed:g} is needed"
    )


def _judge_embeddings(figures: Figures, thresholds: Thresholds) -> str | None:
    for name, got, needed in (
        ("mean cosine to FP32's embeddings", figures.mean_cosine, thresholds.cosine),
        ("rank correlation of similarities with FP32's", figures.rank_correlation, thresholds.rank),
    ):
        # Written so that NaN fails too.
        if got is None or not got >= needed:
            return f"the {name} is {got:.4f} on {_name_inputs(figures)}, at least {needed:g} is needed"
    return None


def _judge_loss(figures: Figures, thresholds: Thresholds) -> str | None:
    loss, allowed = figures.labelled_loss_points, thresholds.labelled_loss_points
    # Written so that NaN fails too.
    if loss is not None and loss <= allowed:
        return None
    return (
        f"accuracy falls from {figures.labelled_accuracy_fp32:.1%} to {figures.labelled_accuracy:.1%} on "
        f"{_name_inputs(figures)} ({loss:.2f} points, {_show_interval(figures)}), "
        f"at most {_count_points(allowed)} may be lost"
    )


def _judge_agreement(figures: Figures, thresholds: Thresholds) -> str | None:
    needed = max(LEAST, -(-figures.samples // round(1 / LEAST_DECIDED)))
    if figures.decided < needed:
        return (
            f"FP32 itself decides only {figures.decided} of {_name_inputs(figures)} (its best two classes at "
            f"least {UNDECIDED_MARGIN:g} apart), at least {needed} are needed to compare answers: "
            "give inputs that the model can tell apart, or labels (EVAL=)"
        )
    agreement = figures.agreement_decided
    if agreement is not None and agreement >= thresholds.agreement:
        return None
    return (
        f"{_excuse_labels(figures)}agreement with FP32 is {agreement:.1%} of {_name_decided(figures)}, "
        f"at least {thresholds.agreement:.1%} is needed"
    )


def _describe_loss(figures: Figures) -> str:
    loss = figures.labelled_loss_points or 0.0
    change = f"{abs(loss):.2f} points {'gained' if loss < 0 else 'lost'}"
    seen = (
        f"{figures.labelled_accuracy:.1%} of {_name_inputs(figures)} right, FP32 "
        f"{figures.labelled_accuracy_fp32:.1%}: {change} ({_show_interval(figures)})"
    )
    if figures.labelled_loss_shown or figures.labelled_loss_allowed_points is None:
        return seen
    allowed = _count_points(figures.labelled_loss_allowed_points)
    needed = figures.labelled_inputs_needed
    would = f"about {needed:,} would" if needed else "no number would, so near is the loss"
    return f"{seen}; too few to show that at most {allowed} is lost: {would}"


def _describe_agreement(figures: Figures) -> str:
    share = figures.agreement_decided
    seen = "no agreement" if share is None else f"{share:.1%} top-1 agreement"
    apart = ""
    if figures.agreement_undecided is not None:
        apart = f"; {figures.agreement_undecided:.1%} of the others, which decide nothing"
    return f"{_excuse_labels(figures)}{seen} with FP32 on {_name_decided(figures)}{apart}"


def _excuse_labels(figures: Figures) -> str:
    if figures.labelled_accuracy_fp32 is None:
        return ""
    return (
        f"the labels decide nothing (FP32 is right on {figures.labelled_accuracy_fp32:.1%}, one and the same "
        f"answer would be on {figures.labelled_guess:.1%}: probably the names are in another order than the "
        "training's, see labels.txt or id2label); "
    )


def _name_inputs(figures: Figures) -> str:
    return f"{figures.samples} {figures.source} inputs"


def _name_decided(figures: Figures) -> str:
    if figures.decided == figures.samples:
        return _name_inputs(figures)
    return f"the {figures.decided} of {_name_inputs(figures)} that FP32 decides"


def _show_interval(figures: Figures) -> str:
    low, high = figures.labelled_loss_interval_points or (float("nan"), float("nan"))
    return f"95% interval of the loss {low:.1f} to {high:.1f}"


def _count_points(points: float) -> str:
    return f"{points:g} point{'' if points == 1 else 's'}"
