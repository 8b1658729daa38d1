"""What answering costs, as timed when the model loads, and how much of it one batch and one request may ask.

TorchServe hands over whole batches and kills a worker that answers one too late, and with it the whole batch.
A batch is therefore bounded in seconds: what it has no room for is rejected, not computed too late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from handlers.shared.errors import BadRequest, LoadError


@dataclass(frozen=True, kw_only=True)
class Work:
    """Costs are tokens as they go through the model, padding included; samples where all have one size."""

    seconds_each: float = 0.0
    """Of a core, for one token (or sample) of the largest warmed shape."""
    per_batch: int | None = None
    """The most that one batch computes; None is no limit: TorchServe's batch size bounds it alone."""
    per_request: int | None = None
    """The most that one request may ask; no more than `per_batch` allows one that comes first."""
    worst_batch_s: float | None = None
    """What the largest batch that is computed takes of a core that does nothing else."""

    def admit(self, costs: Sequence[int]) -> list[BadRequest | None]:
        """For each request of a batch, in order, why it is not computed, or None.

        The first is always computed if it may be asked at all; where a large one is rejected, a small one
        after it may still have room.
        """
        used, rejected = 0, []
        for cost in costs:
            rejection = self._find_rejection(cost, used)
            used += cost if rejection is None else 0
            rejected.append(rejection)
        return rejected

    def _find_rejection(self, cost: int, used: int) -> BadRequest | None:
        if self.per_request is not None and cost > self.per_request:
            return BadRequest(
                413,
                f"the request's texts are {cost} tokens: at most {self.per_request} are computed in the time "
                "that a batch may take; send fewer texts, or shorter ones",
            )
        if self.per_batch is not None and used and used + cost > self.per_batch:
            return BadRequest(
                503,
                f"the requests before this one leave no room for its {cost} tokens: {used} of "
                f"{self.per_batch} are taken; send it again",
            )
        return None


def plan_token_work(
    seconds_each: float, *, tokens_per_batch: int, batch_s: int, longest: int, most_tokens: int
) -> Work:
    """The bounds for texts: the plan's tokens, or as many as `batch_s` seconds of a core hold here.

    `longest` is the longest text, `most_tokens` the largest request of those. LoadError where not even one
    text can be answered in time."""
    in_time = int(batch_s / seconds_each)
    if in_time < longest:
        raise LoadError(
            f"one text of {longest} tokens takes {longest * seconds_each:.1f} s of a core here, and a batch "
            f"may take {batch_s} s",
            fix="serve it in a faster precision (PRECISION=), or with shorter token_lengths in model.yaml",
        )
    per_batch = min(tokens_per_batch, in_time)
    per_request = min(most_tokens, in_time)
    return Work(
        seconds_each=seconds_each,
        per_batch=per_batch,
        per_request=per_request,
        worst_batch_s=round(max(per_batch, per_request) * seconds_each, 3),
    )
