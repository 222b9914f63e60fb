"""CI-LLM: a crowd of LoRA agents on one frozen language model, trained in one batched forward pass."""

from zoo.common.registry import register

__getattr__, __dir__, __all__ = register(
    __name__,
    {
        "aggregation": "Aggregator BayesianAverage Dirichlet FittedMixture Geometric Mean Vote",
        "convert.adapter_folders": "AdapterFolders",
        "data.arithmetic": "Arithmetic",
        "data.datamodule": "TextData",
        "data.tokenizers": "BpeTokenizer ByteTokenizer PretrainedTokenizer Tokenizer",
        "inference.text_generator": "LanguageModel TextGenerator",
        "losses.diversity": "Diversity",
        "nets.agents": "Agents",
        "nets.backbone": "Backbone LearningBackbone",
        "nets.crowd": "Crowd",
        "nets.sampling": "Sampling",
        "pretrain_task": "PretrainTask",
        "task": "CrowdTask",
    },
)
