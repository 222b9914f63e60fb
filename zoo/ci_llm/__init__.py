"""CI-LLM: a crowd of LoRA agents on one frozen language model, trained in one batched forward."""
