"""LoRA agents on SmolLM2-135M-Instruct and GSM8K: likelihoods of held-out answers by ways to train for equal compute.

An item counts as wrong where the likeliest token differs from a token of a computed result (7 of <<4+3=7>>), behind the
right tokens before it. Experts on clusters follow ELREA (arXiv 2502.00089): k-means on the frozen net's mean hidden
states of the questions, experts begun from one adapter of all questions, logits weighted by the input's nearness.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from scipy.cluster.vq import kmeans2

from scripts.bench.tools import train_once
from scripts.evidence.demo import EACH, MEAN, Claim, Demo, EvidenceStep, Figures, fit_step
from scripts.evidence.gallery import FOLDER
from zoo.ci_llm.aggregation import Geometric, Mean
from zoo.ci_llm.convert.read import read
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.data.tokens import LINE, TextRows, join_rows
from zoo.ci_llm.evaluation.trained import load_crowd
from zoo.ci_llm.inference.generate import generate
from zoo.ci_llm.losses.metrics import gather_log_probs
from zoo.ci_llm.losses.objective import label_targets
from zoo.ci_llm.nets.agents import Agents
from zoo.ci_llm.nets.crowd import Crowd
from zoo.common.configs import load_recipe
from zoo.common.systems import recipe_root

NAME, ENDS = "ci_llm/gsm8k", ("", ": low", ": high")
COUNT, ITEMS, DRAWS, ANSWERS, NEW_TOKENS = 4, 64, 2000, 3, 60
WIDE = "one LoRA of their size and compute"
AGENT = "model__init_args__crowd__init_args__agents__init_args"


def fit(root: Path, name: str, seed: int, steps: float = 1, ranks: int = 1, **more: Any) -> EvidenceStep:
    """A training of `steps` times the recipe's, of one agent of `ranks` times its rank."""
    recipe = load_recipe(recipe_root() / f"{NAME}.yaml")
    form = recipe["model"]["init_args"]["crowd"]["init_args"]["agents"]["init_args"]
    changes = {f"{AGENT}__{key}": ranks * form[key] for key in ("rank", "alpha")}
    changes |= {f"{AGENT}__count": 1, f"{AGENT}__seed": seed, "data__init_args__seed": seed}
    changes |= {"trainer__max_steps": int(steps * recipe["trainer"]["max_steps"])}
    return fit_step(root, name, NAME, seed, **(changes | more))


def plan(root: Path, seed: int, quick: bool) -> list[EvidenceStep]:
    """All trainings but those of the experts, whose data `measure` parts: half of the compute is the base adapter's."""
    crowd = fit(root, "crowd", seed, **{f"{AGENT}__count": COUNT})
    wide, base = fit(root, "wide", seed, steps=COUNT, ranks=COUNT), fit(root, "base", seed, steps=COUNT / 2)
    return [fit(root, "one", seed), crowd, wide, base]


class Bench:
    """The frozen net, the training questions and the held-out ones: the first of the test that are short."""

    def __init__(self, run: Path, quick: bool) -> None:
        trained, data, _ = load_crowd(run)
        data.setup("fit")
        self.backbone, self.tokenizer = trained.crowd.backbone, trained.tokenizer
        self.train, self.test = cast(TextRows, data.train_set), cast(TextRows, data.test_set)
        if quick:
            self.train.indices = self.train.indices[:40]
        self.test.indices = np.sort(self.test.indices)[: 2 if quick else ITEMS]
        self.items = [join_rows([row], self.tokenizer.pad_id) for row in self.test]  # type: ignore[attr-defined]

    def crowd(self, *runs: Path) -> Crowd:
        """The agents of some runs together."""
        adapters = [read(run / "final_checkpoint") for run in runs]
        weights = [each for adapter in adapters for each in adapter.weights]
        agents = Agents(len(weights), adapters[0].rank, adapters[0].alpha, dropout=0.0)
        crowd = Crowd(self.backbone, agents).eval()
        for number, each in enumerate(weights):
            agents.load_adapter(number, each)
        return crowd

    @torch.no_grad()
    def features(self, rows: TextRows) -> np.ndarray:
        """Mean hidden states (N, D) of questions by the frozen net."""
        net, prompts = self.backbone.model.get_decoder(), [rows.tokens.prompt(row) for row in rows.indices]
        return np.stack([net(torch.tensor([each])).last_hidden_state[0].mean(0).numpy() for each in prompts])

    @torch.no_grad()
    def scores(self, crowd: Crowd, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Sums of NLL, and whether a computed result is wrong, (1 + K, items) each: together first, then each agent.

        Args:
            weights: of the agents' logits (items, K); the mean of the predictions without.
        """
        nll, wrong = [], []
        for number, item in enumerate(self.items):
            positions, targets = label_targets(item)
            logits = crowd.outputs(item["input_ids"], item["attention_mask"], logits_at=positions).logits
            log_probs = logits.float().log_softmax(-1)  # (K, M, V)
            if weights is None:
                together = Mean().combine(log_probs, Mean().start(crowd.count, len(targets)))
            else:
                together = Geometric().combine(log_probs, torch.tensor(weights[number]).log().expand(len(targets), -1))
            every = torch.cat([together[None], log_probs])
            nll.append(-gather_log_probs(every, targets).sum(-1))
            results = torch.tensor(result_tokens(self.tokenizer, targets.tolist()))
            wrong.append((every.argmax(-1) != targets)[:, results].any(-1))
        return torch.stack(nll, 1).double().numpy(), torch.stack(wrong, 1).double().numpy()


def result_tokens(tokenizer: Tokenizer, answer: Sequence[int]) -> list[bool]:
    """Which tokens of an answer are of a computed result, from behind '=' to '>>' in annotations such as <<4+3=7>>."""
    before = [tokenizer.decode(answer[:count]).rpartition("<<") for count in range(len(answer))]
    return [bool(begin) and "=" in rest and ">>" not in rest for _, begin, rest in before]


def interval(sums: np.ndarray, counts: np.ndarray) -> list[float]:
    """The ratio of sums to counts over items, and 95 % of bootstrap draws of items: value, low, high."""
    rows = np.random.default_rng(0).integers(len(sums), size=(DRAWS, len(sums)))
    draws = sums[rows].sum(1) / counts[rows].sum(1)
    return [float(sums.sum() / counts.sum()), *np.quantile(draws, (0.025, 0.975)).tolist()]


def train_experts(root: Path, seed: int, bench: Bench, quick: bool) -> np.ndarray:
    """Part the training questions and train an expert of each part.

    Returns:
        Weights (items, 1 + K) of the base adapter and the experts: a softmax of the input's cosines to the centroids,
        in deviations of the training questions'; the base adapter stands at their mean.
    """
    pool, inputs = bench.features(bench.train), bench.features(bench.test)
    pool, inputs = ((each - pool.mean(0)) / pool.std(0) for each in (pool, inputs))
    pool, inputs = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (pool, inputs))
    centroids, labels = kmeans2(pool, COUNT, seed=seed, minit="++", missing="raise")
    lines = Path(bench.train.tokens.files[0]).read_text(encoding="utf-8").splitlines(keepends=True)
    (root / "clusters").mkdir(exist_ok=True)
    for number in range(COUNT):
        path = root / "clusters" / f"{number}.jsonl"
        numbers = bench.train.tokens.items[bench.train.indices[labels == number], LINE]
        path.write_text("".join(lines[line - 1] for line in numbers), encoding="utf-8")
        local: dict[str, Any] = {
            "data__init_args__root": path,
            "data__init_args__val_items": 1,
            "init_from": root / "base",
        }
        step = fit(root, f"expert_{number}", seed, steps=0.5, **local)
        train_once(root / step.name, step.arguments, quick)
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    near, usual = inputs @ centroids.T, pool @ centroids.T
    return torch.tensor(np.pad((near - usual.mean()) / usual.std(), ((0, 0), (1, 0)))).softmax(-1).float().numpy()


def write_answers(root: Path, bench: Bench, crowd: Crowd) -> None:
    """Write greedy answers of net and agents to the first held-out questions into the gallery."""
    texts, eos = [], bench.tokenizer.eos_id
    for item in bench.items[:ANSWERS]:
        prompt = item["input_ids"][:, : int((item["labels"] < 0).sum())]
        request = crowd, prompt, torch.ones_like(prompt), Mean(), NEW_TOKENS, [eos]
        with crowd.without_agents():
            alone = generate(*request)
        answers = (bench.tokenizer.decode(ids[0, prompt.shape[1] :].tolist()) for ids in (alone, generate(*request)))
        texts += [bench.tokenizer.decode(prompt[0].tolist()), *map("[{}]{}".format, ("net", "agents"), answers), ""]
    (root / FOLDER).mkdir(exist_ok=True)
    (root / FOLDER / "answers.txt").write_text("\n".join(texts), encoding="utf-8")


def measure(root: Path, quick: bool = False) -> Figures:
    """Train the experts of a seed, and evaluate all runs on the held-out questions; NLL is in nats a token."""
    bench = Bench(root / "crowd", quick)
    weights = train_experts(root, int(root.name), bench, quick)
    crowd = bench.crowd(root / "crowd")
    with crowd.without_agents():
        scores = {"net": bench.scores(crowd)}
    scores |= {"agents": bench.scores(crowd), "one LoRA": bench.scores(bench.crowd(root / "one"))}
    scores[WIDE] = bench.scores(bench.crowd(root / "wide"))
    runs = [root / "base", *(root / f"expert_{number}" for number in range(COUNT))]
    scores["experts"] = bench.scores(bench.crowd(*runs), weights)
    write_answers(root, bench, crowd)
    tokens = np.array([float((item["labels"] >= 0).sum()) for item in bench.items])
    rows = {f"{name}: wrong result": wrong[0] for name, (_, wrong) in scores.items()}
    rows |= {f"{name}: all err": scores[name][1][1:].min(0) for name in ("agents", "experts")}
    sums = {name: nll[0] for name, (nll, _) in scores.items()}
    singles = scores["agents"][0][1:]
    sums |= {"best agent": singles[singles.sum(1).argmin()], "base adapter": scores["experts"][0][1]}
    pairs = [("agents", "best agent"), ("agents", WIDE), ("experts", WIDE), ("experts", "base adapter")]
    sums |= {f"{one} less {other}": sums[one] - sums[other] for one, other in pairs}
    values = {f"{name}: NLL": interval(each, tokens) for name, each in sums.items()}
    values |= {name: interval(each, np.ones(len(each))) for name, each in rows.items()}
    figures = {f"{name}{end}": each for name, row in values.items() for end, each in zip(ENDS, row, strict=True)}
    return {**figures, "items": len(tokens), "answer tokens": tokens.sum()}


DEMO = Demo(NAME, plan, measure, data=("gsm8k", "smollm2"))
CLAIMS = (
    Claim(NAME, "NLL of held-out answers, one LoRA to the net without", "one LoRA: NLL", EACH, 0.95, to="net: NLL"),
    Claim(NAME, "NLL, four LoRA averaged to the best of them", "agents: NLL", EACH, 1.0, to="best agent: NLL"),
    Claim(NAME, f"NLL, four LoRA averaged to {WIDE}", "agents: NLL", MEAN, 1.0, to=f"{WIDE}: NLL"),
    Claim(NAME, f"NLL, an adapter with experts on clusters to {WIDE}", "experts: NLL", MEAN, 1.0, to=f"{WIDE}: NLL"),
)
