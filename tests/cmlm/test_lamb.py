"""LAMB against the algorithm of its paper in numpy: no cap on the norm of the weights, and what bias correction changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mirror.cmlm.trainer import PaperLamb


LR, BETAS, EPS = 1e-3, (0.9, 0.999), 1e-6
# Norms of 15, 30 and 101, as layer norms, matrices and word embeddings of BERT have them: a cap at 10 would scale their
# steps by .65, .33 and .10. Then a tensor that begins at zero, as biases do.
NORMS = (15.0, 30.0, 101.0, 0.0)


def starting_weights() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    drawn = [rng.normal(size=(20, 8)) for _ in NORMS]
    return [norm * each / np.linalg.norm(each) for norm, each in zip(NORMS, drawn, strict=True)]


def gradients(steps: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(steps, len(NORMS), 20, 8))


def lamb_in_numpy(weights: list[np.ndarray], gradients: np.ndarray, decay: float, corrected: bool) -> list[np.ndarray]:
    """Algorithm 2 of You et al. (2020) with phi(z) = z, with and without its correction of the moments."""
    weights = [each.copy() for each in weights]
    first, second = ([np.zeros_like(each) for each in weights] for _ in range(2))
    for step, of_step in enumerate(gradients, start=1):
        for n, gradient in enumerate(of_step):
            first[n] = BETAS[0] * first[n] + (1 - BETAS[0]) * gradient
            second[n] = BETAS[1] * second[n] + (1 - BETAS[1]) * gradient**2
            m, v = first[n], second[n]
            if corrected:
                m, v = m / (1 - BETAS[0] ** step), v / (1 - BETAS[1] ** step)
            update = m / (np.sqrt(v) + EPS) + decay * weights[n]
            norm = np.linalg.norm(weights[n])
            weights[n] = weights[n] - LR * (norm / np.linalg.norm(update) if norm else 1.0) * update
    return weights


@pytest.mark.parametrize("foreach", [None, False])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_lamb_takes_the_steps_of_its_paper_without_a_cap(decay, foreach):
    start, given = starting_weights(), gradients(12)
    parameters = [torch.nn.Parameter(torch.tensor(each)) for each in start]
    flags = {"lr": LR, "betas": BETAS, "eps": EPS, "weight_decay": decay, "foreach": foreach}
    optimizer = PaperLamb(parameters, **flags)
    for of_step in given:
        for parameter, gradient in zip(parameters, of_step, strict=True):
            parameter.grad = torch.tensor(gradient)
        optimizer.step()
    expected = lamb_in_numpy(start, given, decay, corrected=False)
    for parameter, weights in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), weights, rtol=1e-6, atol=1e-9)
    moved = [
        np.linalg.norm(after - before)
        for after, before in zip(lamb_in_numpy(start, given[:1], decay, False), start, strict=True)
    ]
    np.testing.assert_allclose(moved[:3], [LR * norm for norm in NORMS[:3]], rtol=1e-6)


def test_the_trust_ratio_cancels_bias_correction_but_for_weight_decay():
    """So the choice matters little: without decay eps alone makes a difference."""
    start, given = starting_weights()[:3], gradients(12)[:, :3]
    for decay, largest in ((0.0, 2e-3), (0.01, 0.25)):
        ends = [lamb_in_numpy(start, given, decay, corrected) for corrected in (False, True)]
        for before, plain, corrected in zip(start, *ends, strict=True):
            assert np.linalg.norm(plain - corrected) <= largest * np.linalg.norm(plain - before)
