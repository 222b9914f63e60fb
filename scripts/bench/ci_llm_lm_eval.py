"""A crowd of one agent beside the same adapter in lm-eval's `hf` model with peft, on three tasks made on disk.

`python -m scripts.bench.ci_llm_lm_eval` needs lm-eval (`pip install 'zoo[lm_eval]'`). It prints the figures of both and
ends with an error where they differ by more than 1e-4 of their size.
"""

from __future__ import annotations

import importlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from zoo.ci_llm.data.tokenizers import ByteTokenizer
from zoo.ci_llm.evaluation.harness import CrowdRequests, as_model
from zoo.ci_llm.nets.agents import Agents
from zoo.ci_llm.nets.backbone import Backbone
from zoo.ci_llm.nets.crowd import Crowd

CONFIG = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 259,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
TOLERANCE = 1e-4  # of a log-probability, relative
COLOURS = (("Which colour is grass?", "B"), ("Which is the sky's?", "C"), ("Blood?", "A"), ("Ink?", "C"))
RECORDS: dict[str, list[dict[str, Any]]] = {
    "choices": [
        {"question": text, "choices": {"text": ["red", "a green one", "blue é"], "label": ["A", "B", "C"]}, "key": key}
        for text, key in COLOURS
    ],
    "numbers": [
        {"question": f"How much is {a} and {b}?", "answer": f"{a}+{b}\n#### {a + b}"}
        for a, b in ((1, 2), (1000, 234), (-5, 2))
    ],
    "rolling": [{"text": "word " * count + "end"} for count in (3, 80, 140)],
}
_EXACT = {
    "metric": "exact_match", "aggregation": "mean", "higher_is_better": True, "ignore_case": True,
    "ignore_punctuation": False, "regexes_to_ignore": [",", r"\$", "(?s).*#### ", r"\.$"],
}  # fmt: skip
_FIRST = {"function": "take_first"}
_LAST = {"function": "regex", "group_select": -1, "regex_pattern": "(-?[$0-9.,]{2,})|(-?[0-9]+)"}
TASKS: dict[str, dict[str, Any]] = {
    "choices": {
        "output_type": "multiple_choice",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "{{choices.label.index(key)}}",
        "doc_to_choice": "{{choices.text}}",
        "metric_list": [
            {"metric": name, "aggregation": "mean", "higher_is_better": True}
            for name in ("acc", "acc_norm", "acc_bytes")
        ],
    },
    "numbers": {
        "output_type": "generate_until",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["Question:", "</s>"], "do_sample": False, "max_gen_toks": 12},
        "metric_list": [_EXACT],
        "filter_list": [
            {"name": "strict", "filter": [{"function": "regex", "regex_pattern": r"#### (\-?[0-9\.\,]+)"}, _FIRST]},
            {"name": "flexible", "filter": [_LAST, _FIRST]},
        ],
    },
    "rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "byte_perplexity"}],
    },
}


def crowd() -> Crowd:
    """One agent that differs from its backbone."""
    return Crowd(Backbone(config=CONFIG), Agents(1, rank=4, alpha=8, init="normal", std=0.2, dropout=0.0)).eval()


def models() -> tuple[Any, Any]:
    """lm-eval's own model, and ours."""
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

    tokenizer, ours = ByteTokenizer(), crowd()
    config = LoraConfig(r=4, lora_alpha=8, target_modules=list(ours.agents.targets), task_type="CAUSAL_LM")
    model = get_peft_model(Backbone(config=CONFIG).model, config)
    set_peft_model_state_dict(model, ours.agents.adapter(0))
    theirs = importlib.import_module("lm_eval.models.huggingface").HFLM(
        pretrained=model.eval(), tokenizer=tokenizer.backend, max_length=256, batch_size=4
    )
    return theirs, as_model(CrowdRequests(ours, tokenizer, batch_size=3))


def main() -> None:
    """Run both and compare."""
    simple_evaluate = importlib.import_module("lm_eval").simple_evaluate
    manager = importlib.import_module("lm_eval.tasks").TaskManager
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for task, about in TASKS.items():
            lines = "".join(json.dumps(row) + "\n" for row in RECORDS[task])
            (folder / f"{task}.jsonl").write_text(lines, encoding="utf-8")
            data = {"data_files": {"test": str(folder / f"{task}.jsonl")}}
            told = {"task": task, "dataset_path": "json", "test_split": "test", "dataset_kwargs": data, **about}
            (folder / f"{task}.yaml").write_text(yaml.safe_dump(told), encoding="utf-8")
        tasks = manager(include_path=str(folder), include_defaults=False)
        found = [
            simple_evaluate(model=each, tasks=list(TASKS), task_manager=tasks, log_samples=True, bootstrap_iters=0)
            for each in models()
        ]
    for task in TASKS:
        figures = [{key: value for key, value in each["results"][task].items() if "," in key} for each in found]
        print(f"{task}\n  hf and peft  {figures[0]}\n  a crowd      {figures[1]}")
        for theirs, ours in zip(*(each["samples"][task] for each in found), strict=True):
            _compare(theirs["resps"], ours["resps"])


def _compare(theirs: Any, ours: Any) -> None:
    if isinstance(theirs, str | bool):
        if theirs != ours:
            raise SystemExit(f"{theirs!r} and {ours!r} differ")
    elif isinstance(theirs, list | tuple):
        for pair in zip(theirs, ours, strict=True):
            _compare(*pair)
    else:
        np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE)


if __name__ == "__main__":
    main()
