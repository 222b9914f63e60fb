import numpy as np
import pytest
import torch

from zoo.audio.analysis import figures
from zoo.training.callbacks import media


def test_spectra_show_each_waveform_on_one_scale():
    times = torch.arange(16000) / 16000
    loud = torch.sin(2 * torch.pi * 1000 * times)
    waves = {"input": loud[None, None], "result": 0.1 * loud[:300], "target": torch.full((5,), torch.nan)}
    figure = figures.plot_spectrograms(waves, 16000, cutoff_hz=4000)
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == ["input", "result", "target"]
    image = panels[0].images[0]
    assert len({each.images[0].get_clim() for each in panels}) == 1
    level = np.asarray(image.get_array())
    assert level.mean(1).argmax() == 64  # of 513 bins up to 8 kHz
    assert [line.get_ydata()[0] for line in panels[1].lines] == [4.0]
    assert media.figure_to_image(figure).shape[2] == 3
    with pytest.raises(ValueError, match="at least one"):
        figures.plot_spectrograms({}, 16000)
