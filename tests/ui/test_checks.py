"""What a user may say in a config: known ways around a filter of texts, and a search for others."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness import REPOSITORY
from zoo.common.configs import load_yaml
from zoo.ui.checks import MAX_DEPTH, Rules, read_yaml
from zoo.ui.forms.draft import Draft
from zoo.ui.jobs.trainings import Trainings
from zoo.ui.places import Places

EMA = "zoo.training.EMA"
CALLBACKS = {"trainer": {"callbacks": [{"class_path": EMA, "init_args": {"decay": 0.9}}]}}


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    """A server whose work folder holds data, runs, a secret, and links from data and work to the outside."""
    work = tmp_path / "work"
    for name in ("work/data/mine", "work/runs", "outside"):
        (tmp_path / name).mkdir(parents=True)
    (work / "secret.txt").touch()
    (work / "data" / "link").symlink_to(tmp_path / "outside")
    (work / "way").symlink_to(tmp_path / "outside")
    return Rules(work, (work / "data", work / "runs"))


AROUND = {
    "a space in an interpolation": "a=${ oc.env:X}",
    "an interpolation in an interpolation": "a=${b${oc.env:X}}",
    "an interpolation of a key": "a=${trainer.max_steps}",
    "an escaped interpolation": r"a=\${oc.env:X}",
    "an interpolation as a key": "a={'${oc.env:X}': 1}",
    "an interpolation in a list": "a=[[1, 'x${oc.decode:y}']]",
    "list items of one class": f"a=[{{class_path: {EMA}, p: /etc}}, {{class_path: {EMA}, p: x}}]",
    "a key and its dotted twin": "a={b: {c.d: /etc}, b.c: {d: x}}",
    "a dotted key and its twin": "a={'b.c': /etc, b: {c: x}}",
    "a line given twice": "a.b=1\na.b=2",
    "a line and one that holds it": "a.b.c=1\na.b={c: 2}",
    "a set": "a=!!set {/etc/passwd}",
    "a set in a list": "a=[!!set {/etc/passwd: null}]",
    "an ordered map": "a=!!omap [p: /etc/passwd]",
    "pairs": "a=!!pairs [p: /etc/passwd]",
    "a tag of text": "a=!!str /etc/passwd",
    "bytes": "a=!!binary L2V0Yw==",
    "an anchor": "a=[&x zoo, *x]",
    "init_from with a plus": "init_from+=[x]",
    "callbacks with a plus": f"trainer.callbacks+={EMA}",
    "a plus inside": "trainer={callbacks+: [1]}",
    "spaces in front of a path": "a='  /etc/passwd'",
    "a line in front of a path": 'a="\\n/etc/passwd"',
    "escapes": r'a="\x2fetc\u002fpasswd"',
    "a path as a key": "a={/etc/passwd: 1}",
    "quotes within quotes": """a='"/etc/passwd"'""",
    "a mapping in quotes": "a='{b: [/etc/passwd]}'",
    "a class in quotes": 'a=\'{"class_path": "subprocess.Popen"}\'',
    "a set in quotes": "a='!!set {/etc/passwd}'",
    "a block": 'a="|\\n  /etc/passwd"',
    "a folder within": "trainer={default_root_dir: x}",
    "a folder within quotes": "trainer='{default_root_dir: x}'",
    "a link": "a=data/link/passwd",
    "a link, nothing there": "a=way/new",
    "a file of the server": "a=secret.txt",
    "data and out": "a=data/mine/../../secret.txt",
    "a drive": r"a=C:\x",
    "a scheme": "a=file:/etc/passwd",
    "chained schemes": "a=simplecache::file:///etc/passwd",
    "a home": "a=[~root/x]",
    "a foreign class": "a.class_path=subprocess.Popen",
    "an imported name": "a.class_path=zoo.training.callbacks.ema.torch.hub.load",
    "a private class": "a.class_path=zoo.audio.io.files._Sequential",
    "a class of the command line": "a.class_path=zoo.cli.trainer.ZooCLI",
    "a class that loads files": "a={class_path: zoo.cli.trainer.Loaded, init_args: {allow_import: [subprocess]}}",
    "a class of the page": "a.class_path=zoo.ui.jobs.trainings.Trainings",
    "Lightning's writers": "a=[{class_path: lightning.pytorch.loggers.CSVLogger, init_args: {save_dir: x}}]",
    "a class behind a dotted key": "a={'b.class_path': os.system}",
    "a class that is none": "a={class_path: [subprocess.Popen]}",
    "a date as a key": "a={2001-01-01: !!timestamp 2001-01-01}",
    "a deep one": f"a={'[' * 200}{']' * 200}",
    "a bomb in quotes": "a='[&a [x, x], &b [*a, *a], [*b, *b]]'",
}


@pytest.mark.parametrize("lines", [pytest.param(lines, id=name) for name, lines in AROUND.items()])
def test_ways_around_are_closed(lines: str, rules: Rules) -> None:
    with pytest.raises(ValueError) as refused:
        Draft("toy", "smoke", (), CALLBACKS).set_lines(lines, rules)
    assert len(str(refused.value).splitlines()) == 1


def test_honest_lines_pass(rules: Rules) -> None:
    honest = {
        "data.init_args.root": str(rules.work / "data" / "mine"),
        "data.init_args.other": "data/mine/later.txt",
        "checkpoints.monitor": "val/mel",
        "model.init_args.loss_weights": {"g/mel": 30, "d/mpd": 1.0e-3},
        "model.init_args.template": "*Q*: {question} & more!\n",
        "model.init_args.net": {"class_path": "zoo.flow.UNet", "init_args": {"channels": [1, None, True]}},
        "model.init_args.since": "2001-01-01",
    }
    lines = "\n".join(f"{key}={json.dumps(value)}" for key, value in honest.items())
    draft = Draft("toy", "smoke", (), CALLBACKS)
    draft.set_lines(lines, rules)
    flat = draft.changes()
    assert flat["data"]["init_args"]["root"] == honest["data.init_args.root"]
    assert flat["model"]["init_args"]["since"] == "2001-01-01"
    assert flat["model"]["init_args"]["net"] == honest["model.init_args.net"]


@pytest.mark.parametrize("value", [{"class_path": "os.system"}, "/etc/passwd", ["~/x"], "${oc.env:SECRET}"])
def test_fields_take_what_lines_take(value: Any, rules: Rules) -> None:
    """What a field holds of which kind is the form's affair; whatever it hands on is looked at like a line."""
    draft = Draft("toy", "smoke", (), CALLBACKS)
    for key in ("trainer.max_steps", "trainer.precision", "trainer.callbacks.EMA.init_args.decay", "guard.on"):
        with pytest.raises(ValueError, match=r"no paths|is no part"):
            draft.set(key, value, rules)
    assert draft.edits == {}


NAMES = st.sampled_from(["a", "b", "init_args", "g/mel", "net", "optimizer", "items"])
WORDS = st.sampled_from(["full", "val/mel", "x y", "1e-3", "on", "ä", "", "data/mine", "*b*", "!x", "a: b", "100 %"])
GOOD_CLASSES = st.sampled_from([EMA, "zoo.flow.UNet"])
POISON = st.sampled_from(
    [
        "/etc/passwd",
        "~/x",
        "../x",
        "a/../../x",
        "${x}",
        "q${ oc.env:X}",
        "http://x/y",
        "\\\\host\\x",
        "way/x",
        "secret.txt",
    ]
)
FOREIGN = st.sampled_from(
    ["subprocess.Popen", "os.system", "zoo.cli.main.main", "lightning.pytorch.Trainer", "torch.load"]
)
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.integers(-99, 99).map(lambda n: n / 8), WORDS)


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        mappings = st.dictionaries(NAMES, inner, max_size=3)
        return st.one_of(
            st.lists(inner, max_size=3),
            mappings,
            st.tuples(GOOD_CLASSES, mappings).map(lambda p: {"class_path": p[0], **p[1]}),
        )

    return st.recursive(leaves, grown, max_leaves=12)


POISONED = st.one_of(
    POISON,
    POISON.map(lambda text: {text: 1}),
    FOREIGN.map(lambda name: {"class_path": name}),
    FOREIGN.map(lambda name: {"net.class_path": name}),
    NAMES.map(lambda name: {f"{name}+": [1]}),
    NAMES.map(lambda name: {f" {name}": 1}),
)


def spelled(draw: st.DrawFn, tree: Any) -> str:
    """One of many YAML texts on one line that are read as this tree."""
    if isinstance(tree, list):
        return "[" + ", ".join(spelled(draw, item) for item in tree) + draw(st.sampled_from(["", " "])) + "]"
    if isinstance(tree, Mapping):
        pairs = [f"{spelled(draw, key)}: {spelled(draw, value)}" for key, value in tree.items()]
        return "{" + ", ".join(pairs) + "}"
    if not isinstance(tree, str):
        return json.dumps(tree)
    way = draw(st.sampled_from(["json", "escaped", "single", "plain"]))
    if way == "escaped":
        return '"' + "".join(f"\\U{ord(letter):08x}" for letter in tree) + '"'
    if way == "single":
        return "'" + tree.replace("'", "''") + "'"
    if way == "plain" and load_yaml(f"[{json.dumps(tree)}]") == read_or_none(f"[{tree}]"):
        return tree
    return json.dumps(tree)


def read_or_none(text: str) -> Any:
    try:
        return load_yaml(text)
    except (yaml.YAMLError, ValueError):
        return None


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, Any, bool]:
    """A text, the tree that it is read as, and whether that holds poison, which may be put anywhere in any guise."""
    tree, poisoned = draw(trees(LEAVES)), draw(st.booleans())
    if poisoned:
        bad = draw(POISONED)
        if draw(st.booleans()):
            bad = spelled(draw, bad)  # a text that a parser reads as the thing itself
        for _ in range(draw(st.integers(0, 4))):  # below or beside other things, some of one class or of one key
            around = draw(trees(LEAVES))
            bad = draw(
                st.sampled_from(
                    [
                        [around, bad],
                        [bad, around],
                        {"a": bad, "b": around},
                        [{"class_path": EMA, "p": bad}, {"class_path": EMA, "p": 1}],
                        {"a.b": bad, "a": {"b": 1}},
                        {"init_args": {"a": bad}},
                    ]
                )
            )
        tree = bad
    return spelled(draw, tree), tree, poisoned


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
def test_poison_is_found_wherever_and_however_it_stands(case: tuple[str, Any, bool], rules: Rules) -> None:
    text, tree, poisoned = case
    assert read_yaml(text) == tree
    for check in (
        lambda: Draft("toy", "smoke", (), {}).set_lines(f"key.sub={text}", rules),
        lambda: rules.check_config({"key": {"sub": tree}}, ()),
    ):
        if poisoned:
            with pytest.raises(ValueError):
                check()
        else:
            check()


def test_trees_that_are_no_trees_end(rules: Rules) -> None:
    ring: list[Any] = []
    ring.append(ring)
    wide: Any = "x"
    for _ in range(MAX_DEPTH - 2):
        wide = [wide] * 4
    for tree in (ring, wide):
        with pytest.raises(ValueError, match="more than"):
            rules.check_config(tree, ())


def test_what_the_recipe_says_itself_may_lead_anywhere(rules: Rules) -> None:
    config = {"data": {"root": "/srv/speech", "net": {"class_path": "torch.optim.AdamW"}}}
    rules.check_config(config, {"/srv/speech", "torch.optim.AdamW"})
    for known in ({"/srv/speech"}, {"torch.optim.AdamW"}):
        with pytest.raises(ValueError, match=r"data\."):
            rules.check_config(config, known)


def test_the_parsed_config_decides(tmp_path: Path) -> None:
    """A short class name and a recipe's interpolation become what they mean only when the real parser has read them."""
    for name in ("runs", "temp", "data"):
        (tmp_path / name).mkdir()
    places = Places(tmp_path, tmp_path / "runs", tmp_path / "temp", tmp_path / "data")
    trainings, recipe = Trainings(places), REPOSITORY / "configs" / "hifigan" / "smoke.yaml"
    known = {"torch.optim.AdamW"}
    draft = Draft("hifigan", "smoke", (), {})
    draft.set_lines("trainer.logger=CSVLogger", places.rules())
    changes = draft.changes()
    with pytest.raises(ValueError, match=r"trainer\.logger\.class_path: 'lightning"):
        trainings.check([recipe], changes, places.rules(), lambda: known)
