from pathlib import Path

import pytest
import torch

from zoo.common.safe_load import load_foreign_checkpoint
from zoo.hifigan.convert import from_original

SSL_CONFIG = {
    "resblock": "1", "upsample_rates": [7, 7, 3, 3], "upsample_kernel_sizes": [15, 15, 7, 7],
    "upsample_initial_channel": 16, "resblock_kernel_sizes": [3, 7, 11], "resblock_dilation_sizes": [[1, 3, 5]] * 3,
    "conformer_num_heads": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def golden(folder: Path) -> dict:
    return load_foreign_checkpoint(folder / "generator_io.pt")


def test_waveform(folder, golden):
    generator = from_original(folder / "g_00000123")
    with torch.no_grad():
        torch.testing.assert_close(generator(golden["mel"]), golden["wav"], atol=1e-6, rtol=0)
        torch.testing.assert_close(generator(golden["mel_batch2"]), golden["wav_batch2"], atol=1e-6, rtol=0)


def test_fused_weights_and_waveform(folder, golden):
    generator = from_original(folder / "g_00000123").remove_weight_norm_()
    state = generator.state_dict()
    assert list(state) == list(golden["fused_state_dict"])
    for key, expected in golden["fused_state_dict"].items():
        torch.testing.assert_close(state[key], expected, atol=1e-6, rtol=0, msg=key)
    with torch.no_grad():
        torch.testing.assert_close(generator(golden["mel"]), golden["wav_after_remove_weight_norm"], atol=1e-6, rtol=0)


def test_exact_receptive_field_on_golden_mel(folder, golden):
    generator = from_original(folder / "g_00000123").remove_weight_norm_()
    context, hop = generator.receptive_frames, generator.hop_length
    with torch.no_grad():
        middle = generator(golden["mel"][..., 40 - context : 44 + context])[..., context * hop : (context + 4) * hop]
    torch.testing.assert_close(middle, golden["wav"][..., 40 * hop : 44 * hop], atol=1e-6, rtol=0)


@pytest.mark.parametrize("case", ["vocoder_plain", "vocoder_conformer"])
def test_ssl_vocoders(shared, case):
    case_folder = shared / "golden" / "miipher" / case
    golden = load_foreign_checkpoint(case_folder / "io.pt")
    generator = from_original(case_folder / "vocoder.ckpt", SSL_CONFIG).eval()
    assert (generator.conditioner is None) == (case == "vocoder_plain")
    with torch.no_grad():
        wave = generator(golden["input_feature"].transpose(1, 2))
    torch.testing.assert_close(wave, golden["waveform"], atol=1e-6, rtol=0)
