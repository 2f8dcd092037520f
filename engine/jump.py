"""Forced tokens: where a form allows one continuation alone, the model is not asked for it. Pure.

The mask of a row on its way says that its sample is forced; then what follows is looked at too. All of it is known
before the sample is there, which brings it out, and the sequence's next row runs these tokens at once, as those of a
prompt, and samples behind them. An answer has the tokens that it would have had one by one, in fewer steps: masks of
one token leave nothing to chance, the draw depends on the position alone, and a row's numbers do not depend on how its
tokens were cut into steps.
"""

from __future__ import annotations

from itertools import takewhile

from engine.sequence import Ahead, Phase, Sequence
from engine.step import Finish, RowResult

LEAST = 2
"""Of one token nothing is gained: it is the sample on its way."""
MOST = 32
"""Forced tokens that a step runs, and that are looked at: all who are in it wait for them."""


def look_ahead(sequence: Sequence, end: int) -> None:
    """Notes what is forced behind position `end`, where the sample of a row on its way will stand.

    Its mask was given. Not where a later row is planned already, nor where log-probabilities are told, which only the
    model knows.
    """
    request, constraint = sequence.request, sequence.request.constraint
    if constraint is None or request.sampling.logprobs is not None:
        return
    if sequence.phase is not Phase.RUNNING or sequence.planned != end:
        return
    forced = constraint.forced(min(MOST, request.max_tokens - sequence.generated))
    stops = request.sampling.stop_ids
    tokens = tuple(takewhile(lambda token: token not in stops, forced))
    if len(tokens) < LEAST:
        return
    sequence.ahead = Ahead(tokens, accepted(sequence, tokens))
    sequence.tokens.extend(tokens)
    sequence.forced = len(sequence.tokens)
    sequence.sampling += len(tokens) - 1


def taken(sequence: Sequence, row: RowResult) -> tuple[tuple[int, ...], Finish | None]:
    """The tokens that a result adds to its sequence, and why it ends for that, if it does."""
    ahead, sequence.ahead = sequence.ahead, None
    if ahead is not None and row.finish is None:
        return ahead
    sequence.tokens.extend(row.tokens)
    finish = accepted(sequence, row.tokens)  # first: where rules fail, the end of text is all that they allow
    return row.tokens, finish or row.finish


def accepted(sequence: Sequence, tokens: tuple[int, ...]) -> Finish | None:
    """Tells the sequence's constraint what it has; why it ends for that, if it does."""
    constraint = sequence.request.constraint
    if constraint is None:
        return None
    return next((finish for token in tokens if (finish := constraint.accept(token)) is not None), None)
