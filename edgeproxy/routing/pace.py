"""How fast a node works, learnt from what it did: recursive least squares with forgetting, one model a node.

    seconds from the first prefill step to the first token = decode + per_token * u + per_row * r * (1 + u / CHUNK)

u: prompt tokens computed, r: sequences that were running. A prompt takes about 1 + u / CHUNK steps, and each of them
carries the running rows along; without the last term a node would look slow for ever after it was busy once.
Haykin, Adaptive Filter Theory, chapter 10; the forgetting factor is that of research on serving cost models (0.98: the
last fifty samples or so count).
"""

from __future__ import annotations

from edgeproxy.routing.least_squares import LeastSquares, Vector

FORGETTING = 0.98
SURPRISED = 0.3
QUICK_FORGETTING = 0.90
"""While the mean error is above the first, the node is another than the one that was learnt: the last ten count."""
CHUNK_TOKENS = 32.0
"""Prompt tokens that one step of a busy CPU node takes along; with larger chunks `per_row` comes out small."""
PRIOR_DECODE_S = 0.010
PRIOR_PER_TOKEN_S = 94e-6
"""GORGO's default (arXiv 2602.11688), until the node tells its own rate or answers once."""
MAX_PER_TOKEN_S = 1.0
MAX_DECODE_S = 30.0
LEAST_SHARE = 0.25
"""Of what a node declares a token to take: no sample makes it less. Two alike cannot tell it from fixed cost, and a
token taken to cost nothing makes a queue of any length look empty."""
RELAXED = 0.8
"""By so much a node that gets no requests, or never got any, looks faster at each probe: it is tried
(Peak-EWMA decays likewise)."""
_OUTLIER = 4.0
"""A sample moves the model as if it were at most so many mean errors away: one stalled answer is no new speed."""
_OUTLIER_FLOOR = 0.5
_ERROR_WEIGHT = 0.1
_SCALE_S = 0.010
"""Samples are weighted by 1 / (this + what was expected): errors are shares of what a prompt takes, and among absolute
ones those of long prompts would drown the short."""
# The regressors are scaled to the order of one, so that the matrix stays well conditioned.
_TOKENS = 1000.0
_ROWS = 10.0
# Prior variances of (decode, per 1000 tokens, per 10 rows): (50 ms)², (1 s)², (50 ms)² over a sample's, 10 % squared.
_PRIOR: Vector = (0.25, 100.0, 0.25)
_DECLARED_DOUBT = 5.0
"""Half of a rate that a node declares, over a sample's 10 %: it was that of a rehearsal, perhaps on a busy machine."""
_MOST: Vector = (MAX_DECODE_S, MAX_PER_TOKEN_S * _TOKENS, MAX_PER_TOKEN_S * _ROWS)


class Pace:
    """Seconds. `per_token` and the others are read in every forecast, hence plain attributes."""

    __slots__ = ("_eased", "_fit", "_least", "decode", "error", "per_row", "per_token", "samples")

    def __init__(self, per_token: float = PRIOR_PER_TOKEN_S, decode: float = PRIOR_DECODE_S) -> None:
        self.decode = decode
        self.per_token = per_token
        self.per_row = 0.0
        self.error = 0.0
        """Mean distance of samples from the model, as a share of what was expected."""
        self.samples = 0
        self._least = 0.0
        self._eased = 1.0
        """What is left of others' figures and of declared ones: a node that never answered must not starve on those."""
        self._fit = LeastSquares(_PRIOR)

    def expect(self, tokens: float, running: float) -> float:
        """For a prompt of which `tokens` are to be computed, beside `running` sequences."""
        return self.decode + self.per_token * tokens + self.per_row * running * (1.0 + tokens / CHUNK_TOKENS)

    def drain(self, running: float) -> float:
        """Seconds that a token in the queue ahead costs."""
        return self.per_token + self.per_row * running / CHUNK_TOKENS

    def declared(self, tokens_per_s: float) -> None:
        """What the node says of its prefill rate: believed until there are samples, and a bound to them."""
        if tokens_per_s > 0:
            self._least = LEAST_SHARE * min(1.0 / tokens_per_s, MAX_PER_TOKEN_S)
            if not self.samples:
                declared = self._least / LEAST_SHARE
                self.per_token = max(declared * self._eased, self._least)
                doubt = (_DECLARED_DOUBT * declared * _TOKENS) ** 2
                self._fit = LeastSquares((_PRIOR[0], max(_PRIOR[1], doubt), _PRIOR[2]))

    def suppose(self, other: Pace) -> None:
        """Another node of the model has answered, and this one never has: it is taken to be alike."""
        if not self.samples:
            self.decode, self.per_row = other.decode * self._eased, other.per_row * self._eased
            if not self._least:
                self.per_token = other.per_token * self._eased

    def relax(self) -> None:
        """No answer for a while: what made it slow may be over, and nobody would find out if it were never tried."""
        self._eased *= RELAXED
        self.decode *= RELAXED
        self.per_row *= RELAXED
        self.per_token = max(self.per_token * RELAXED, self._least)

    def observe(self, tokens: float, running: float, seconds: float) -> None:
        """An answer's prefill and first decode step together took `seconds`. Never called for a failed request."""
        expected = self.expect(tokens, running)
        scale = 1.0 / (_SCALE_S + expected)
        x = scale, scale * tokens / _TOKENS, scale * running * (1.0 + tokens / CHUNK_TOKENS) / _ROWS
        keep = QUICK_FORGETTING if self.error > SURPRISED else FORGETTING
        now = self.decode, self.per_token * _TOKENS, self.per_row * _ROWS
        least = 0.0, self._least * _TOKENS, 0.0
        miss = self._clipped((seconds - expected) * scale)
        self.decode, per_tokens, per_rows = self._fit.moved(now, x, miss, keep, least, _MOST)
        self.per_token, self.per_row = per_tokens / _TOKENS, per_rows / _ROWS

    def _clipped(self, miss: float) -> float:
        distance = abs(miss)
        most = max(_OUTLIER * self.error, _OUTLIER_FLOOR)
        # The mean error follows what was seen, not what was used: a new speed is believed after a few samples.
        self.error += (distance - self.error) * (_ERROR_WEIGHT if self.samples else 1.0)
        self.samples += 1
        if self.samples <= 3 or distance <= most:
            return miss
        return most if miss > 0 else -most
