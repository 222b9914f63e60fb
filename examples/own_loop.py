"""Train a net of the zoo in a loop of your own: HiFi-GAN's generator on noise with a mel loss, no Trainer."""

import argparse

import torch

import zoo


def main() -> None:
    """Train and save the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--output", default="generator.pt")
    options = parser.parse_args()
    torch.manual_seed(0)
    mel = zoo.audio.LogMel(sample_rate=22050, n_mels=80)
    net = zoo.hifigan.Generator(initial_channels=32)  # 80 mel bands in, 256 samples per frame out
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(options.steps):
        audio = 0.1 * torch.randn(4, 8192)  # your waveforms (B, T) in the range -1 to 1
        target = mel(audio)  # (B, 80, frames)
        loss = (mel(net(target).squeeze(1)) - target).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: mel L1 {loss.item():.3f}")
    torch.save(net.state_dict(), options.output)


if __name__ == "__main__":
    main()
