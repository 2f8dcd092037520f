"""How many tokens a prompt has, learnt from what nodes counted: a proxy has no tokenizer.

    tokens = base + per_message * messages + per_byte * bytes

`base` is what the chat template adds whatever is said (a system prompt of its own, the opening of the answer): of a
short question the greater part. Prompts of one model and form: with tools, a template adds much more; a plain
completion has none.
"""

from __future__ import annotations

from edgeproxy.routing.least_squares import LeastSquares, Vector

PER_BYTE = 0.25
"""Of a prompt as JSON, until answers have told: English text in the usual vocabularies."""
_FORGETTING = 0.98
_LEAST: Vector = (0.0, -16.0, 0.0625)
"""A message is cheaper than its bytes of JSON say where the template has few tokens for it: hence below nothing."""
_MOST: Vector = (4096.0, 64.0, 2.0)
_PRIOR: Vector = (32.0**2, 4.0**2, 0.1**2)
"""Variances of (base, per message, per byte), where a sample's is 1."""
_NOISE, _NOISE_SHARE = 2.0, 0.1
"""Standard deviation of a sample in tokens: texts differ by a tenth in how many bytes a token has."""
_EXACT, _EXACT_SHARE = 0.5, 0.01
"""A count that was foretold so well teaches nothing: most do, and requests need not pay for it."""
_OUTLIER, _OUTLIER_FLOOR = 4.0, 2.0
"""As in `pace`: a sample moves the estimate as if it were at most so many mean errors away."""
_ERROR_WEIGHT = 0.1
_FOUND_WEIGHT = 0.1


class Length:
    """Of the prompts of one model and form."""

    __slots__ = ("_fit", "_found", "base", "error", "per_byte", "per_message", "samples", "usual")

    def __init__(self) -> None:
        self.base = 0.0
        self.per_message = 0.0
        self.per_byte = PER_BYTE
        self.error = 0.0
        """Mean distance of counts from the estimate, in standard deviations."""
        self.samples = 0
        self.usual = 0.0
        """Tokens that a node finds cached of a prompt of which it is not known to hold anything: the template's head,
        which all of a tenant's prompts share."""
        self._found = 0
        self._fit = LeastSquares(_PRIOR)

    def tokens(self, size: int, messages: int) -> float:
        """`size`: bytes of the prompt, as JSON; `messages`: 0 for one that is no chat."""
        tokens = self.base + self.per_message * messages + self.per_byte * size
        return tokens if tokens > 1.0 else 1.0

    def held(self, size: int, messages: int, held_bytes: int) -> float:
        """Tokens in the first `held_bytes` of a prompt; the template's head comes before them."""
        tokens = self.tokens(size, messages)
        base = min(self.base, tokens)
        return base + (tokens - base) * held_bytes / size if size and held_bytes else 0.0

    def counted(self, size: int, messages: int, tokens: int) -> None:
        """A node counted a prompt. What no text can have, a node that miscounts, is taken for the nearest possible."""
        expected = self.tokens(size, messages)
        share = _EXACT_SHARE * expected
        if abs(tokens - expected) <= (share if share > _EXACT else _EXACT) and self.samples:
            self.error -= self.error * _ERROR_WEIGHT
            return
        found = min(max(float(tokens), _LEAST[2] * size), _MOST[2] * size + _MOST[0])
        scale = 1.0 / (_NOISE + _NOISE_SHARE * expected)
        miss = self._clipped((found - expected) * scale)
        now = self.base, self.per_message, self.per_byte
        x = scale, messages * scale, size * scale
        self.base, self.per_message, self.per_byte = self._fit.moved(now, x, miss, _FORGETTING, _LEAST, _MOST)

    def found(self, cached_tokens: int) -> None:
        """What a node had cached of a prompt of which it was not known to hold anything."""
        self._found += 1
        self.usual += (cached_tokens - self.usual) * max(2.0 / (self._found + 1), _FOUND_WEIGHT)

    def _clipped(self, miss: float) -> float:
        most = max(_OUTLIER * self.error, _OUTLIER_FLOOR)
        self.error += (abs(miss) - self.error) * (_ERROR_WEIGHT if self.samples else 1.0)
        self.samples += 1
        return miss if self.samples <= 3 else min(max(miss, -most), most)
