"""Where a slot's sampling state lies: a row of INTS int32 and one of REALS float64 for each slot."""

import triton.language as tl

STOPS: tl.constexpr = tl.constexpr(64)
"""Most stop ids of a sequence."""
BIASES: tl.constexpr = tl.constexpr(512)
"""Most biased tokens."""
TOLD: tl.constexpr = tl.constexpr(20)
"""Most tokens whose log-probabilities are told of beside the sampled one."""

LAST: tl.constexpr = tl.constexpr(0)
"""The token sampled last."""
ENDED: tl.constexpr = tl.constexpr(1)
TOP_K: tl.constexpr = tl.constexpr(2)
SEED: tl.constexpr = tl.constexpr(3)
"""Low word, then high word."""
FIRST: tl.constexpr = tl.constexpr(5)
MIN_TOKENS: tl.constexpr = tl.constexpr(6)
LOGPROBS: tl.constexpr = tl.constexpr(7)
"""-1: nothing is told."""
PENALISES: tl.constexpr = tl.constexpr(8)
STOP_COUNT: tl.constexpr = tl.constexpr(9)
BIAS_COUNT: tl.constexpr = tl.constexpr(10)
STOP_IDS: tl.constexpr = tl.constexpr(16)
BIAS_IDS: tl.constexpr = tl.constexpr(16 + 64)
INTS: tl.constexpr = tl.constexpr(16 + 64 + 512)

TEMPERATURE: tl.constexpr = tl.constexpr(0)
TOP_P: tl.constexpr = tl.constexpr(1)
MIN_P: tl.constexpr = tl.constexpr(2)
REPETITION: tl.constexpr = tl.constexpr(3)
FREQUENCY: tl.constexpr = tl.constexpr(4)
PRESENCE: tl.constexpr = tl.constexpr(5)
BIAS_VALUES: tl.constexpr = tl.constexpr(8)
REALS: tl.constexpr = tl.constexpr(8 + 512)

KNOWN: tl.constexpr = tl.constexpr(1 << 30)
"""In a slot's count of a token [slots, vocab]: it was seen; the lower bits say how often it was sampled."""

STOP: tl.constexpr = tl.constexpr(1)
ERROR: tl.constexpr = tl.constexpr(2)
"""Why a slot ended, in a result."""
