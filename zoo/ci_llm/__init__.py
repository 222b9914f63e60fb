"""CI-LLM: a crowd of LoRA agents on one frozen language model, trained in one batched forward."""

from zoo.common.registry import public

__getattr__, __all__ = public(
    __name__,
    {
        "adapter_folders": "AdapterFolders",
        "agents": "Agents",
        "aggregator": "Aggregator BayesianAverage Dirichlet Fitted Geometric Mean SampleMember Vote",
        "arithmetic": "Arithmetic",
        "backbone": "Backbone",
        "crowd": "Crowd",
        "data": "TextData",
        "diversity": "Diversity",
        "pretrain": "LearningBackbone PretrainTask Speaker",
        "sampling": "Sampling",
        "task": "CrowdTask",
        "tokenizers": "BpeTokenizer ByteTokenizer PretrainedTokenizer Tokenizer",
        "writer": "Writer",
    },
)
