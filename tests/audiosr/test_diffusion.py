import itertools

import pytest
import torch
from torch import Tensor

from zoo.audiosr.diffusion import CosineDiffusion, row_noise
from zoo.audiosr.samplers import DDIM, DPMSolver, time_grid

SPREAD = 0.4


def perfect(diffusion: CosineDiffusion, spread: float = SPREAD):
    """What a net that has learnt N(0, spread^2) predicts."""

    def predict(x: Tensor, t: Tensor) -> Tensor:
        signal, sigma = diffusion.signal[t][:, None], diffusion.sigma[t][:, None]
        total = (signal * spread).square() + sigma.square()
        x0, noise = signal * spread**2 / total * x, sigma / total * x
        return noise if diffusion.prediction == "noise" else signal * noise - sigma * x0

    return predict


def generate(sampler, diffusion, rows=16, size=256) -> tuple[Tensor, Tensor]:
    noises = row_noise(range(rows), (size,))
    start = next(noises)
    return start, sampler.sample(perfect(diffusion), start, diffusion, noises)


@pytest.mark.parametrize("prediction", ["v", "noise"])
@pytest.mark.parametrize(
    "sampler",
    [DDIM(100), DDIM(100, 1.0), DDIM(100, 1.0, "original"), DPMSolver(15)],
    ids=["ddim", "ddim-eta1", "ddim-eta1-original", "dpm"],
)
def test_the_datas_spread_is_kept(sampler, prediction):
    _, x0 = generate(sampler, CosineDiffusion(prediction=prediction))
    assert x0.std().item() == pytest.approx(SPREAD, rel=0.05)


def test_the_exact_solution_is_approached_and_dpm_solver_is_nearer():
    diffusion = CosineDiffusion()

    def error(sampler) -> float:
        start, x0 = generate(sampler, diffusion)
        return (x0 - SPREAD * start).abs().mean().item()  # a Gaussian's flow is linear

    assert error(DPMSolver(15)) < 0.25 * error(DDIM(15))
    assert error(DPMSolver(200)) < 0.1 * error(DPMSolver(15))
    assert error(DDIM(1000)) < 0.2 * error(DDIM(100))


@pytest.mark.parametrize("prediction", ["v", "noise"])
@pytest.mark.parametrize("make", [DDIM, DPMSolver])
def test_nothing_is_infinite_from_pure_noise_to_clean_data(make, prediction):
    diffusion = CosineDiffusion(prediction=prediction)
    for steps, grid in itertools.product((1, 2, 1000), ("trailing", "dense", "original")):
        x0 = make(steps, grid=grid).sample(perfect(diffusion), torch.ones(2, 3), diffusion)
        assert x0.isfinite().all()


def test_a_rows_noise_depends_on_its_seed_only():
    diffusion, sampler = CosineDiffusion(), DDIM(4, eta=1.0)
    rows = []
    for seeds in ([2**63, 4], [4]):
        noises = row_noise(seeds, (8,))
        rows.append(sampler.sample(perfect(diffusion), next(noises), diffusion, noises))
    assert torch.equal(rows[0][1], rows[1][0]) and not torch.equal(*rows[0])


def test_grids():
    assert time_grid(4, "trailing", 1000) == [999, 749, 499, 249, -1]
    assert time_grid(4, "original", 1000) == [751, 501, 251, 1, 0]
    assert time_grid(1000, "original", 1000)[0] == 999
    for steps in (200, 400, 1000):
        assert len(set(time_grid(steps, "dense", 1000))) == steps + 1  # as many evaluations as steps
    dense = time_grid(15, "dense", 1000)
    gaps = [a - b for a, b in itertools.pairwise(dense)]
    assert len(dense) == 16 and dense[0] == 999 and gaps == sorted(gaps, reverse=True)


@pytest.mark.parametrize("prediction", ["v", "noise"])
def test_a_perfect_prediction_gives_data_and_noise_back(prediction):
    diffusion = CosineDiffusion(prediction=prediction).double()
    torch.manual_seed(0)
    (x0, noise), steps = torch.randn(2, 3, 4, 5, 2).double(), torch.tensor([0, 400, 998])
    x, output = diffusion.add_noise(x0, noise, steps), diffusion.target(x0, noise, steps)
    torch.testing.assert_close(diffusion.to_x0(x, output, steps), x0, atol=1e-4, rtol=0)
    torch.testing.assert_close(diffusion.to_noise(x, output, steps), noise, atol=1e-5, rtol=0)
