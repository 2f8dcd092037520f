"""Recursive least squares with forgetting, for three coefficients that each have bounds.

Haykin, Adaptive Filter Theory, chapter 10. A coefficient that a sample would take beyond its bound stays at it, and the
others are moved to what is most probable then: what the one could not take is theirs to explain, else the model would
miss the very sample that it has just been fitted to.
"""

from __future__ import annotations

Vector = tuple[float, float, float]


class LeastSquares:
    """What is known of the coefficients, beside their values: a covariance, in units of a sample's own variance."""

    __slots__ = ("_covariance", "_prior")

    def __init__(self, prior: Vector) -> None:
        """`prior`: the coefficients' variances before any sample."""
        self._prior = prior
        self._covariance = (prior[0], 0.0, 0.0, prior[1], 0.0, prior[2])
        """Symmetric: 00, 01, 02, 11, 12, 22."""

    def moved(self, now: Vector, x: Vector, miss: float, keep: float, least: Vector, most: Vector) -> Vector:
        """The coefficients after a sample. `now`: before it; `x`: its regressors, and `miss`: by how much it exceeds
        what they foretold, both divided by its standard deviation; `keep`: what earlier samples still weigh."""
        x0, x1, x2 = x
        p00, p01, p02, p11, p12, p22 = self._covariance
        g0 = p00 * x0 + p01 * x1 + p02 * x2
        g1 = p01 * x0 + p11 * x1 + p12 * x2
        g2 = p02 * x0 + p12 * x1 + p22 * x2
        gain = 1.0 / (keep + g0 * x0 + g1 * x1 + g2 * x2)
        pull = miss * gain
        p00, p11, p22 = p00 - g0 * g0 * gain, p11 - g1 * g1 * gain, p22 - g2 * g2 * gain
        p01, p02, p12 = p01 - g0 * g1 * gain, p02 - g0 * g2 * gain, p12 - g1 * g2 * gain
        # Forgetting without news would blow the matrix up: along what no sample has shown lately nothing is forgotten.
        most0, most1, most2 = self._prior
        grown = 1.0 / keep if p00 <= most0 and p11 <= most1 and p22 <= most2 else 1.0
        self._covariance = p00 * grown, p01 * grown, p02 * grown, p11 * grown, p12 * grown, p22 * grown
        c0, c1, c2 = now[0] + g0 * pull, now[1] + g1 * pull, now[2] + g2 * pull
        if least[0] <= c0 <= most[0] and least[1] <= c1 <= most[1] and least[2] <= c2 <= most[2]:
            return c0, c1, c2
        return self._within((c0, c1, c2), least, most)

    def _within(self, found: Vector, least: Vector, most: Vector) -> Vector:
        """One bound after the other: each coefficient that is beyond its own takes the others along."""
        p00, p01, p02, p11, p12, p22 = self._covariance
        for index, row in enumerate(((p00, p01, p02), (p01, p11, p12), (p02, p12, p22))):
            bounded = _bounded(found[index], least[index], most[index])
            if bounded != found[index] and row[index] > 0.0:
                share = (bounded - found[index]) / row[index]
                found = (found[0] + row[0] * share, found[1] + row[1] * share, found[2] + row[2] * share)
        return (
            _bounded(found[0], least[0], most[0]),
            _bounded(found[1], least[1], most[1]),
            _bounded(found[2], least[2], most[2]),
        )


def _bounded(value: float, least: float, most: float) -> float:
    return min(max(value, least), most)
