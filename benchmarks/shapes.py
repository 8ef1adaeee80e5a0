"""The benchmarked model sizes: Llama-like, with untied embeddings."""

from groundup.model.config import ModelConfig
from measure import Json


def shape(vocab: int, context: int, d_model: int, layers: int, heads: int, d_ff: int) -> Json:
    config = ModelConfig(
        vocab_size=vocab,
        context_length=context,
        d_model=d_model,
        num_layers=layers,
        num_heads=heads,
        d_ff=d_ff,
    )
    return config.model_dump(mode="json")


SMALL = shape(2_048, 128, 192, 4, 6, 512)
S1 = shape(10_000, 256, 512, 4, 16, 1_344)
S2 = shape(50_304, 1_024, 768, 12, 12, 2_048)
S3 = shape(50_304, 1_024, 1_024, 24, 16, 2_752)
