"""How far one executor's logits are from another's on the same text. For tests and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Divergence:
    """A value for every position of a text; logarithms are natural."""

    expected_nll: Doubles
    """-log p of the token that follows, by the expected logits."""
    nll: Doubles
    kl: Doubles
    """KL(expected || found) over the whole vocabulary."""
    expected_entropy: Doubles
    entropy: Doubles
    same_top: npt.NDArray[np.bool_]

    @classmethod
    def join(cls, parts: Sequence[Divergence]) -> Divergence:
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))

    def at(self, positions: slice | npt.NDArray[np.bool_]) -> Divergence:
        return Divergence(*(getattr(self, name)[positions] for name in self.__slots__))

    @property
    def perplexity_change(self) -> tuple[float, float]:
        """Of the found logits against the expected, as a share, and its standard error (the texts are paired)."""
        change = self.nll - self.expected_nll
        return float(np.expm1(change.mean())), float(change.std() / np.sqrt(len(change)))


def diverge(expected: Floats, found: Floats, following: Sequence[int]) -> Divergence:
    """Both [n, vocab]; `following`: the n tokens that follow. Not finite logits give not finite values."""
    with torch.inference_mode():
        p, q = (torch.log_softmax(torch.from_numpy(logits), -1) for logits in (expected, found))
        true = torch.tensor(following)[:, None]
        p_share, q_share = p.exp(), q.exp()
        return Divergence(
            expected_nll=_doubles(-p.gather(1, true)[:, 0]),
            nll=_doubles(-q.gather(1, true)[:, 0]),
            kl=_doubles((p_share * (p - q)).sum(-1)),
            expected_entropy=_doubles(-(p_share * p).sum(-1)),
            entropy=_doubles(-(q_share * q).sum(-1)),
            same_top=(p.argmax(-1) == q.argmax(-1)).numpy(),
        )


def _doubles(values: torch.Tensor) -> Doubles:
    return values.double().numpy()
