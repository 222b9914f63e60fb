"""Tools of Miipher alone; each imports what it needs when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from zoo.common.locks import writes_into

if TYPE_CHECKING:
    from zoo.audio.augment.degrade import Degrader


@writes_into("output")
def degrade(
    clean: Path,
    output: Path,
    noise: Path | None = None,
    rir: Path | None = None,
    kind: Literal["auto", "ljspeech", "libritts_r", "jvs", "fleurs_r", "tree"] = "auto",
    copies: int = 4,
    format: Literal["tree", "shards"] = "tree",
    sample_rate: int = 22050,
    seed: int = 172957,
    val_items: int = 600,
    workers: int = 0,
    recipe: Literal["a2", "open_miipher"] = "a2",
    degrader: Degrader | None = None,
    shard_samples: int = 1000,
    gzip: bool = False,
    cache: Path = Path("runs/cache"),
) -> int:
    """Write degraded copies of a corpus: mirrored trees or WebDataset shards, split into train and val.

    The same call again goes on after a kill and repeats failed files. The result does not depend on --workers.

    Args:
        clean: folder of clean speech.
        output: folder to write: train/ and val/, and manifest.jsonl with the facts of every copy.
        noise: folder of noise; noise made in code when not given.
        rir: folder of room impulse responses; made in code when not given.
        kind: layout of the corpus; auto looks.
        copies: degraded copies of each utterance.
        format: tree (clean/ and degraded/ with equal names) or shards (tar files).
        sample_rate: of the degraded audio in Hz.
        seed: of the split and of all randomness.
        val_items: utterances of the shuffled corpus that go to val/.
        workers: processes; 0 works in this one.
        recipe: a2 (noise, then reverb for half, then a codec) or open_miipher (up to 3 of 4 steps in random order).
        degrader: settings of your own instead of the recipe, e.g. --degrader.steps '[reverb, noise, codec]'.
        shard_samples: samples of a shard.
        gzip: compress the shards (.tar.gz).
        cache: folder of the corpus caches, for the noise.

    Returns:
        1 when a file failed, else 0.
    """
    from zoo.audio.augment import rooms
    from zoo.audio.augment.degrade import Degrader
    from zoo.audio.corpora.cache import build
    from zoo.audio.corpora.corpus import Corpus, cache_folder
    from zoo.audio.io.files import walk
    from zoo.miipher.data.degrade_corpus import degrade_corpus

    noises: Corpus = (
        rooms.SyntheticNoise(clips=24, sample_rate=sample_rate)
        if noise is None
        else build(walk(noise), cache_folder(cache, noise, sample_rate), sample_rate)
    )
    rirs = rooms.synthetic_rirs(200, sample_rate) if rir is None else rooms.read_rirs(rir, sample_rate)
    counts = degrade_corpus(
        clean, output, degrader or getattr(Degrader, recipe)(), noises, rirs, kind, copies, format, sample_rate, seed,
        val_items, workers, shard_samples, gzip,
    )  # fmt: skip
    print(f"{output}: {', '.join(f'{key} {value}' for key, value in counts.items())}")
    return int(counts["failed"] > 0)


@writes_into("output")
def evaluate(
    *,
    clean: Path,
    restored: Path | dict[str, Path],
    output: Path,
    degraded: Path | None = None,
    metrics: list[str] | None = None,
    sample_rate: int = 22050,
    match_level: bool = False,
    texts: Path | None = None,
    asr_model: str | None = None,
    asr_language: str | None = None,
    speaker_model: str | None = None,
    dnsmos: Path | None = None,
    mos_model: Path | None = None,
    device: str = "cpu",
    workers: int = 0,
) -> int:
    """Measure restored (and degraded) files against clean ones: CSV, summary with intervals, box plots.

    Files are matched by their paths below the folders, without suffix. A second call computes only what is missing. The
    exit code is 1 when a file could not be measured; per_file.csv says why.

    Args:
        clean: folder of clean files.
        restored: folder of restored files; of several systems with --restored.NAME FOLDER.
        output: folder for per_file.csv, summary.csv, summary.json, report.md and boxplots.png.
        degraded: folder of the files that were restored, to tell the gain.
        metrics: of pesq, stoi, estoi, si_sdr, mcd, pitch, lsd, m_stft; all that are installed when not given.
        sample_rate: at which si_sdr, mcd, lsd and m_stft are taken, in Hz; not above that of the clean files.
        match_level: bring signals to the level of the clean ones for lsd and m_stft.
        texts: file with what is said, lines `name|text`; for the recogniser.
        asr_model: hub id or folder of a transformers recogniser, for word and character error rates.
        asr_language: for a recogniser of several languages, such as en.
        speaker_model: hub id or folder of a transformers x-vector model, or an ONNX file, for speaker similarity.
        dnsmos: folder with Microsoft's sig_bak_ovr.onnx and model_v8.onnx.
        mos_model: ONNX file from waveform to predicted opinion score (UTMOS and the like).
        device: torch device of the transformers models.
        workers: processes; 0 computes in this one.

    Returns:
        0, or 1 when a file failed.

    Raises:
        FileNotFoundError: a folder or model file is missing.
        ValueError: the trees do not match, a name is unknown, or a recogniser is given without texts.
    """
    from zoo.audio.evaluation import judges, measures
    from zoo.audio.evaluation import run as evaluation
    from zoo.audio.evaluation.dnsmos import DNSMOS

    if (asr_model is None) != (texts is None):
        raise ValueError("--asr_model and --texts belong together: error rates need a recogniser and what was said")
    chosen = [
        judges.SpeakerSimilarity(speaker_model, device=device) if speaker_model else None,
        DNSMOS(dnsmos) if dnsmos else None,
        judges.MOSPredictor(mos_model) if mos_model else None,
        judges.ASR(asr_model, language=asr_language, device=device) if asr_model else None,
    ]
    settings = evaluation.Settings(
        metrics=tuple(measures.installed() if metrics is None else metrics),
        sample_rate=sample_rate,
        match_level=match_level,
        judges=tuple(judge for judge in chosen if judge is not None),
    )
    result = evaluation.evaluate(
        clean,
        restored if isinstance(restored, dict) else {"restored": restored},
        output,
        degraded,
        settings,
        evaluation.read_texts(texts) if texts is not None else None,
        workers,
    )
    print((output / "report.md").read_text(encoding="utf-8"))
    print(f"wrote {output}")
    return 1 if result.failed else 0


@writes_into("output")
def cache_features(
    input: Path,
    output: Path,
    encoder: Path,
    overwrite: bool = False,
    device: str = "cpu",
) -> int:
    """Write the features of audio as memory-mappable .npy files, for training the vocoder without the encoder.

    The same call again computes only what is missing; manifest.jsonl tells the status of every file.

    Args:
        input: audio file, shard, or folder of them.
        output: folder to write: the same tree of (C, F) float16 files.
        encoder: a recipe (its model.encoder), or a run, checkpoint or export (its trained encoder).
        overwrite: compute also what is finished already.
        device: torch device.

    Returns:
        1 when a file failed, else 0.
    """
    from zoo.miipher.inference.feature_cache import cache_folder, read_encoder

    counts = cache_folder(input, output, read_encoder(encoder), overwrite, device)
    print(f"{output}: {', '.join(f'{key} {value}' for key, value in counts.items())}")
    return int(counts["failed"] > 0)


def assemble(cleaner: Path, vocoder: Path, output: Path) -> None:
    """Write a restorer of a trained cleaner and a vocoder that was not fine-tuned on it, as an export.

    Args:
        cleaner: run, checkpoint or export of stage 1.
        vocoder: run, checkpoint or export of stage 2 (or 3), on the same backbone.
        output: folder to write; appears only when complete.

    Raises:
        ValueError: when one of them holds something else, or the two have different backbones.
    """
    from zoo.miipher.inference.restore import assemble as write

    write(cleaner, vocoder, output)
    print(f"wrote {output}")
