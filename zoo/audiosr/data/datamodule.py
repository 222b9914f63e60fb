"""The datamodule of AudioSR: full-band crops with band-limited counterparts, simulated or recorded."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import lightning as L
import numpy as np

from zoo.audio import EmbeddedCorpus
from zoo.audio.augment.rooms import load_noises
from zoo.audio.corpora.cache import CorpusCache, build_cache
from zoo.audio.corpora.corpus import CACHES, Corpus, cache_dir, select
from zoo.audio.io import files
from zoo.audio.io.files import AudioFileError, Channels, find_audio_files
from zoo.audiosr.data.items import Clips, Crops, Grid, Silence
from zoo.audiosr.data.simulate import Simulation, top
from zoo.audiosr.data.sources import ChannelCorpus, FileCorpus, Part, RamCorpus, Recordings, find_parts, pair
from zoo.common.build import build as make
from zoo.common.checks import check_at_least, check_one_of, check_within, find_data_folder
from zoo.common.configs import load_run_config
from zoo.training.datamodule import ZooDataModule

log = logging.getLogger(__name__)

SEGMENT_SAMPLES = 491_520  # 10.24 s at 48 kHz: 1024 frames of 480 samples
_LOOKED_AT = 32  # files
VAL_CUTOFFS_HZ = (2000.0, 4000.0, 8000.0, 12000.0, 16000.0)  # those that the sample rate can hold


class SuperResolutionData(ZooDataModule):
    """Batches `high` and `low` (B, 1, T), equally long and aligned, and `cutoff_hz` (B,) float32.

    Crops, filters and all else are drawn anew in every epoch, and depend on (seed,
    epoch, item) alone. Validation is the same in every run: each clip at each cut-off, with a filter type that follows
    from the item's number.

    What takes the place of the original's "fastboot" (training on the files loaded so far): the first run, or `zoo
    cache` before it, decodes each file once into a cache that is taken up again after a kill; `cache_mode: none` starts
    at once and decodes while it trains.

    Args:
        root: folder laid out `{train,valid}/{high,low}` or `{high,low}`, or any tree of audio such as LJSpeech's, which
            then is all `high`; null for the embedded speech-like corpus.
        mode: `simulate` makes the low clips; `paired` reads those of `low`, files of the same relative name, of which
            `cutoff_hz` is detected. Where counterparts differ in length the shorter counts.
        valid_root: folder of validation clips, laid out `{high,low}` or as a tree.
        train_list: files to train on: lines `id|anything` or paths, or JSONL with `path`; all when null.
        val_list: files to validate on, likewise.
        val_ratio: share of the clips for validation where neither folder nor list names them, 0 to 1, chosen at random;
            null takes the last `val_items` by name, as `zoo.hifigan.VocoderData` does.
        split_seed: of that choice.
        sample_rate: Hz.
        segment_samples: length of a training crop; shorter clips are padded with zeros at the end.
        val_samples: length of a validation excerpt; as in training when null.
        val_items: most validation clips; all when null. Needed where `val_ratio` is null.
        val_cutoffs_hz: grid of validation in Hz; 2, 4, 8, 12 and 16 kHz, as far as the sample rate allows, when null.
        simulation: how counterparts are made; with its defaults when null.
        noise: folder of noise for the simulation; null for noise made in code.
        normalize: scale each clip to a peak of 0.95, and its counterpart with it.
        most_gain_db: training crops are raised, with their counterparts, until the counterpart's peak is 0.95, but by
            no more than this. Restoring brings the peak of its input there, and what a filter leaves of noise may lie
            14 dB below its target: a net that never heard it raised misses its level. Null leaves the clips' level.
        blank_ratio_max: largest share of silent hops in a crop; 8 tries, half of them in other clips, then the least
            silent is taken.
        blank_hop_seconds: length of a hop.
        blank_threshold: RMS of full scale below which a hop is silent.
        channels: what becomes of a stereo file: `mono` mixes it down, `each` makes left and right an item each,
            `mid_side` their mean and half of their difference. Items of one file have crop, cut-off, filter and gain
            in common; files are split and counted (`val_items`) as a whole. Needs a cache of the corpus.
        cache_mode: `memmap` reads a 16-bit cache on disk, `ram` loads it into memory (once per rank), `none` decodes
            files over and over; equal up to 16-bit rounding.
        cache: folder of the corpus caches.
        max_bad_share: share of unreadable files above which the run stops; below it they are named and left out.
        embedded_if_missing: use the embedded corpus, with a message, when `root` does not exist.
        embedded_utterances: size of the embedded corpus.
        batch_size: crops per batch and process.
        num_workers: loader processes.
        seed: of order, crops and degradations.

    Raises:
        FileNotFoundError: a folder does not exist.
    """

    def __init__(
        self,
        root: str | None = None,
        mode: Literal["simulate", "paired"] = "simulate",
        valid_root: str | None = None,
        train_list: str | None = None,
        val_list: str | None = None,
        val_ratio: float | None = 0.05,
        split_seed: int = 1337,
        sample_rate: int = 48000,
        segment_samples: int = SEGMENT_SAMPLES,
        val_samples: int | None = None,
        val_items: int | None = None,
        val_cutoffs_hz: Sequence[float] | None = None,
        simulation: Simulation | None = None,
        noise: str | None = None,
        normalize: bool = True,
        most_gain_db: float | None = None,
        blank_ratio_max: float = 0.3,
        blank_hop_seconds: float = 1.0,
        blank_threshold: float = 1e-4,
        channels: Channels = "mono",
        cache_mode: Literal["memmap", "ram", "none"] = "memmap",
        cache: str = CACHES,
        max_bad_share: float = 0.1,
        embedded_if_missing: bool = False,
        embedded_utterances: int = 24,
        batch_size: int = 8,
        num_workers: int = 0,
        seed: int = 1234,
    ) -> None:
        super().__init__(batch_size=batch_size, num_workers=num_workers, seed=seed)
        self.root = find_data_folder("root", root, embedded_if_missing)
        self.mode = mode
        self.valid_root = None if self.root is None else find_data_folder("valid_root", valid_root, False)
        self.lists = (train_list, val_list)
        self.val_ratio = val_ratio
        self.split_seed = split_seed
        self.sample_rate = sample_rate
        self.segment_samples = segment_samples
        self.val_samples = segment_samples if val_samples is None else val_samples
        self.val_items = val_items
        self.simulation = Simulation() if simulation is None else simulation
        self.needs_noise = mode == "simulate" and self.simulation.noise > 0
        self.noise = find_data_folder("noise", noise, embedded_if_missing) if self.needs_noise else None
        self.normalize = normalize
        self.most_gain_db = most_gain_db
        self.silence = Silence(blank_ratio_max, max(1, round(blank_hop_seconds * sample_rate)), blank_threshold)
        self.channels: Channels = channels
        self.cache_mode = cache_mode
        self.cache = Path(cache)
        self.max_bad_share = max_bad_share
        self.embedded_utterances = embedded_utterances
        self.val_cutoffs_hz = self._grid(val_cutoffs_hz)
        self._check()

    def prepare_data(self) -> None:
        """Write the corpus caches, once per machine."""
        if self.noise is not None:
            folder = cache_dir(self.cache, self.noise, self.sample_rate)
            build_cache(
                find_audio_files(self.noise),
                folder,
                self.sample_rate,
                max_bad_share=self.max_bad_share,
                root=self.noise,
            )
        if self.root is None or self.cache_mode == "none":
            return
        for part in self._parts():
            for paths, folder, root in self._corpora(part):
                build_cache(
                    paths, folder, self.sample_rate, max_bad_share=self.max_bad_share, channels=self.channels, root=root
                )
                if self.channels == "mono":
                    _tell_of_stereo(paths)

    def setup(self, stage: str) -> None:
        """Open the corpora and split them."""
        if self.root is None:
            train = Recordings(EmbeddedCorpus(self.embedded_utterances, self.sample_rate), normalize=self.normalize)
            valid = None
        else:
            train, *rest = (self._recordings(part) for part in self._parts())
            valid = rest[0] if rest else None
        train_clips = train.usable
        if valid is None:
            valid = train
            train_clips, val_clips = self._split(train_clips)
        else:
            val_clips = valid.usable
        train_clips, val_clips = train.with_channels(train_clips), valid.with_channels(val_clips[: self.val_items])
        noises = load_noises(self.noise, self.cache, self.sample_rate, training=True) if self.needs_noise else None
        self.train_set: Crops = Crops(
            train, train_clips, self.sample_rate, self.segment_samples, self.silence, self.simulation, noises,
            self.seed, self.most_gain_db,
        )  # fmt: skip
        self.file_facts = (select(train.high.lengths, train_clips),)
        self.val_set: Grid = Grid(
            valid, val_clips, self.sample_rate, self.val_samples, self.silence, self.simulation,
            self.val_cutoffs_hz,
        )  # fmt: skip

    def _parts(self) -> list[Part]:
        assert self.root is not None
        train, valid = find_parts(self.root, self.mode == "paired", self.valid_root, self.lists)
        return [train] if valid is None else [train, valid]

    def _corpora(self, part: Part) -> list[tuple[Sequence[Path], Path, Path]]:
        """Files, cache folder and root of a part's high and, in paired data, low clips."""
        found = []
        for paths, root in ((part.high, part.folder), (part.low, part.low_folder)):
            folder = cache_dir(self.cache, root, self.sample_rate, part.lists)
            if self.channels != "mono":
                folder = folder.with_name(f"{folder.name}-{self.channels}")
            if paths:
                found.append((paths, folder, root))
        return found

    def _recordings(self, part: Part) -> Recordings:
        high, *low = (self._open(*corpus) for corpus in self._corpora(part))
        if not low:
            return Recordings(high, normalize=self.normalize)
        return pair(part, high, low[0], self.sample_rate, self.normalize)

    def _open(self, paths: Sequence[Path], folder: Path, root: Path) -> Corpus:
        if self.cache_mode == "none":
            return FileCorpus(paths, self.sample_rate, self.max_bad_share, root)
        cache = CorpusCache(folder)
        corpus = RamCorpus(cache) if self.cache_mode == "ram" else cache
        return corpus if self.channels == "mono" else ChannelCorpus(corpus)

    def _split(self, clips: Clips) -> tuple[Clips, Clips]:
        """Clips for training and for validation; those of validation in the order drawn, if they are."""
        count = (self.val_items or 0) if self.val_ratio is None else max(1, round(self.val_ratio * len(clips)))
        if not 0 < count < len(clips):
            raise ValueError(
                f"data.init_args.val_ratio {self.val_ratio}, val_items {self.val_items}: {count} of {len(clips)} clips "
                "would be for validation, and both sets need at least one"
            )
        if self.val_ratio is None:
            return clips[:-count], clips[-count:]
        drawn = np.random.default_rng(self.split_seed).permutation(np.asarray(clips))
        return np.sort(drawn[count:]), drawn[:count]

    def _grid(self, cutoffs_hz: Sequence[float] | None) -> tuple[float, ...]:
        if cutoffs_hz is None:
            return default_cutoffs(self.sample_rate)
        if not cutoffs_hz or not all(0 < cutoff < self.sample_rate / 2 for cutoff in cutoffs_hz):
            raise ValueError(
                f"data.init_args.val_cutoffs_hz: expected frequencies above 0 and below half the sample rate of "
                f"{self.sample_rate} Hz, found {list(cutoffs_hz)}"
            )
        return tuple(float(cutoff) for cutoff in cutoffs_hz)

    def _check(self) -> None:
        if self.mode == "simulate":
            self.simulation.band(self.sample_rate)
        elif self.root is None:
            raise ValueError("data.init_args.mode paired needs a root with the folders high and low")
        check_one_of(get_args(Channels), channels=self.channels)
        if self.channels != "mono" and self.cache_mode == "none":
            raise ValueError(f"data.init_args.channels {self.channels} needs a cache: set cache_mode memmap or ram")
        check_within(0, 1, val_ratio=self.val_ratio or 0.0, blank_ratio_max=self.silence.ratio_max)
        check_at_least(0, most_gain_db=self.most_gain_db or 0.0)
        check_at_least(1, segment_samples=self.segment_samples, val_samples=self.val_samples)


def _tell_of_stereo(paths: Sequence[Path]) -> None:
    """Say so where files lose their channels; a sample of them is looked at."""
    chosen = [paths[number] for number in np.unique(np.linspace(0, len(paths) - 1, _LOOKED_AT).astype(int)).tolist()]
    stereo = 0
    for path in chosen:
        with contextlib.suppress(AudioFileError):
            stereo += files.info(path).channels > 1
    if stereo:
        log.warning(
            "%d of %d files that were looked at have several channels, which are mixed down; data.init_args.channels: "
            "each or mid_side trains on those of stereo files",
            stereo, len(chosen),
        )  # fmt: skip


def default_cutoffs(sample_rate: int) -> tuple[float, ...]:
    """The grid of validation in Hz, as far as a sample rate allows."""
    return tuple(cutoff for cutoff in VAL_CUTOFFS_HZ if cutoff <= top(sample_rate))


def read_data(config: Path, from_run: bool = False) -> SuperResolutionData:
    """Build the datamodule of a recipe alone; nothing is decoded yet. See `load_run_config` for `from_run`."""
    spec = load_run_config(config, from_run=from_run).get("data")
    data = None if spec is None else make(spec, L.LightningDataModule)
    if not isinstance(data, SuperResolutionData):
        raise ValueError(f"{config}: expected data of {SuperResolutionData.__name__}, found {type(data).__name__}")
    return data


def cache(config: Path) -> None:
    """Decode a recipe's corpus into its memory-mapped cache before training; a killed call is taken up again.

    Args:
        config: a recipe whose data is AudioSR's.
    """
    data = read_data(config)
    if data.cache_mode == "none":
        raise ValueError(f"{config}: data.init_args.cache_mode is none, so there is no cache to build")
    data.prepare_data()
    data.setup("fit")
    print(f"{config}: ready, {len(data.train_set)} clips for training, {len(data.val_set)} items for validation")
