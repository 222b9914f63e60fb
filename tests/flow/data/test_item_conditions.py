import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.flow.conditions import digits, net, prepared, text
from zoo.flow import ImageData, Inpainting, rendering
from zoo.flow.data import image_sets
from zoo.flow.data.item_conditions import CAPTION, DERIVED, CachedPromptStates
from zoo.training.resume import item_seed


def write(path: Path, shade: int) -> None:
    values = np.full((8, 8, 1), shade, np.uint8)
    values[:, :4] = 0  # so that its mirror image is another
    rendering.write_png(path, values)


def test_states_are_encoded_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = text(chunk=2)
    prompts = ["b", "a", "b", "c"]
    states = CachedPromptStates(encoder, prompts, ["tokens", "mask"], tmp_path)
    states.open()
    result, expected = states(["c", "b"]), encoder.encode(["a", "b", "c"])
    for name in ("tokens", "mask"):
        torch.testing.assert_close(result[name].float(), expected[name][[2, 1]].float(), atol=2e-3, rtol=2e-3)
    assert result.keys() == {"tokens", "mask"} and len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(encoder, "encode", None)
    again = CachedPromptStates(encoder, ["c", "a", "b"], ["mask", "tokens"], tmp_path)  # the same prompts and states
    again.open()
    assert torch.equal(pickle.loads(pickle.dumps(again))(["c"])["tokens"], result["tokens"][:1])
    with pytest.raises(TypeError):
        CachedPromptStates(encoder, ["d"], ["tokens"], tmp_path)


def test_items_have_states_and_images(tmp_path: Path) -> None:
    encoder, hidden = text(), Inpainting()
    data = digits(tmp_path, captions="a {}", flips=True)
    prepared(data, text=encoder, image_condition=hidden, net=net(condition_channels=2))
    keys = [(0, 3), (1, 3), (0, 40)]
    batch = data.train_set.__getitems__(keys)
    assert batch["conditions"].keys() == {"tokens", "mask", "image"}
    names = [data.classes[label - 1] for label in batch["label"]]
    expected = encoder.encode([f"a {name}" for name in names])["tokens"]
    torch.testing.assert_close(batch["conditions"]["tokens"], expected, atol=2e-3, rtol=2e-3)
    seeds = [item_seed(item_seed(data.seed, *key), 0, DERIVED) for key in keys]
    mirrored = hidden.from_training(batch["x1"], seeds)  # as the item is
    assert torch.equal(batch["conditions"]["image"], mirrored)
    with pytest.raises(ValueError, match="texts need both"):
        prepared(digits(tmp_path), text=encoder, net=net())
    conditions = data.val_set.generation_conditions([0, 1])
    assert all(prompt.startswith("a ") for prompt in conditions.prompts)
    assert torch.equal(conditions.images, data.val_set.__getitems__([0, 1])["conditions"]["image"])


def test_captions_of_files_and_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number, name in enumerate(["b.png", "a.png", "c.jpg"]):
        write(tmp_path / name, 40 * number)
        (tmp_path / name).with_suffix(".txt").write_text(f"shade {number}\n\nnumber {number}\n")
    result = image_sets.folder(tmp_path, flat=True)
    assert not caplog.text
    write(tmp_path / "sub" / "d.png", 9)
    assert len(image_sets.folder(tmp_path, flat=True).labels) == 3 and "skipped folders" in caplog.text
    assert result.classes == [] and result.labels == [0, 0, 0]
    captions = image_sets.add_captions(result, "files").captions
    assert captions == [["shade 1", "number 1"], ["shade 0", "number 0"], ["shade 2", "number 2"]]
    texts = [("a.png", "x"), ("b.png", "y"), ("a.png", "z"), ("c.jpg", "w")]
    rows = [json.dumps({"file_name": name, "text": text}) + "\n" for name, text in texts]
    (tmp_path / "metadata.jsonl").write_text("".join(rows))
    captioned = image_sets.add_captions(result, "metadata.jsonl")
    assert captioned.captions == [["x", "z"], ["y"], ["w"]]
    remaining = image_sets.exclude_images(captioned, {0: "broken"})
    assert remaining.captions == [["y"], ["w"]] and remaining.source.name(0) == "b.png" and remaining.labels == [0, 0]
    (tmp_path / "less.jsonl").write_text("".join(rows[:3]))
    (tmp_path / "other.jsonl").write_text('{"file": "a.png"}\n')
    for captions, message in (
        ("less.jsonl", r"1 of 3 images have no caption, the first c\.jpg"),
        ("other.jsonl", "line 1: expected texts file_name and text"),
        ("a {}", "no classes"),
        ("caption", "expected files"),
    ):
        with pytest.raises(ValueError, match=message):
            image_sets.add_captions(result, captions)
    (tmp_path / "a.txt").write_bytes("\ufeffone\u2028more\x0cof it\r\ntwo\n".encode())  # marks and separators
    assert image_sets.add_captions(result, "files").captions[0] == ["one\u2028more\x0cof it", "two"]


def test_one_of_several_captions_is_sampled_in_each_epoch(tmp_path: Path) -> None:
    for number in range(12):
        write(tmp_path / f"images/{number:02d}.png", 100 + number)
        (tmp_path / f"images/{number:02d}.txt").write_text(f"one {number}\ntwo {number}\n")
    options = {"image_resolution": 8, "channels": 1, "val_every": 4, "cache": str(tmp_path / "cache")}
    data = prepared(ImageData(str(tmp_path / "images"), captions="files", **options), text=text(), net=net())
    assert data.classes == [] and (len(data.train_set), len(data.val_set)) == (9, 3)
    keys = [(epoch, 2) for epoch in range(6)]
    batch = data.train_set.__getitems__(keys)
    seeds = [item_seed(item_seed(data.seed, *key), 0, CAPTION) for key in keys]
    states = data.train_set.conditions.states([["one 2", "two 2"][seed % 2] for seed in seeds])
    assert torch.equal(batch["conditions"]["tokens"], states["tokens"]) and len({seed % 2 for seed in seeds}) == 2
    assert data.val_set.generation_conditions([0]).prompts == ["one 3"]
