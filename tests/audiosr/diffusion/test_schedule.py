from __future__ import annotations

import pytest
import torch

from zoo.audiosr.diffusion.schedule import CosineDiffusion

STEPS = torch.tensor([0, 400, 998])


@pytest.mark.parametrize("prediction", ["v", "noise"])
def test_a_perfect_prediction_gives_data_and_noise_back(prediction):
    diffusion = CosineDiffusion(prediction=prediction).double()
    torch.manual_seed(0)
    x0, noise = torch.randn(2, 3, 4, 5, 2).double()
    x = diffusion.add_noise(x0, noise, STEPS)
    output = diffusion.target(x0, noise, STEPS)
    torch.testing.assert_close(diffusion.to_x0(x, output, STEPS), x0, atol=1e-4, rtol=0)
    torch.testing.assert_close(diffusion.to_noise(x, output, STEPS), noise, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("prediction", "expected"), [("v", 2.0), ("noise", 0.0)])
def test_the_last_step_is_pure_noise(prediction, expected):
    diffusion = CosineDiffusion(prediction=prediction)
    x0, noise, last = torch.full((1, 4), 2.0), torch.ones(1, 4), torch.tensor([999])
    x = diffusion.add_noise(x0, noise, last)
    assert torch.equal(x, noise)
    output = diffusion.target(x0, noise, last)
    assert torch.equal(diffusion.to_x0(x, output, last), torch.full((1, 4), expected))
    assert torch.equal(diffusion.to_noise(x, output, last), noise)


@pytest.mark.parametrize(
    ("arguments", "message"), [({"steps": 1}, "at least 2, not 1"), ({"prediction": "x0"}, "one of v, noise, not 'x0'")]
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        CosineDiffusion(**arguments)
