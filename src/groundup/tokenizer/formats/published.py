"""The ranks files that others have published, known by the hash of their content.

Each entry records what the file itself does not say: its split pattern and the special tokens it is
used with.
"""

from dataclasses import dataclass, field

from groundup.files import hash_bytes
from groundup.tokenizer.patterns import CL100K, GPT2, LLAMA3, O200K, QWEN2, Pattern


@dataclass(frozen=True)
class PublishedRanks:
    """What is known of one published ranks file."""

    name: str
    pattern: Pattern
    special_tokens: dict[str, int] = field(default_factory=dict)


def find_published(data: bytes) -> PublishedRanks | None:
    """The published vocabulary with exactly this content, if it is one."""
    return _PUBLISHED.get(hash_bytes(data))


def _number_from(first_id: int, texts: list[str]) -> dict[str, int]:
    return {text: first_id + index for index, text in enumerate(texts)}


_LLAMA3_SPECIAL_TOKENS = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    *(f"<|reserved_special_token_{number}|>" for number in range(4)),
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|reserved_special_token_4|>",
    "<|eot_id|>",
    *(f"<|reserved_special_token_{number}|>" for number in range(5, 251)),
]
_QWEN_SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    *(f"<|extra_{number}|>" for number in range(205)),
]

_PUBLISHED = {
    "sha256:306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930": PublishedRanks(
        "r50k_base", GPT2, {"<|endoftext|>": 50256}
    ),
    "sha256:94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069": PublishedRanks(
        "p50k_base", GPT2, {"<|endoftext|>": 50256}
    ),
    "sha256:223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": PublishedRanks(
        "cl100k_base",
        CL100K,
        {
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "sha256:446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": PublishedRanks(
        "o200k_base", O200K, {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}
    ),
    "sha256:82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55": PublishedRanks(
        "llama3", LLAMA3, _number_from(128000, _LLAMA3_SPECIAL_TOKENS)
    ),
    "sha256:b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186": PublishedRanks(
        "qwen", QWEN2, _number_from(151643, _QWEN_SPECIAL_TOKENS)
    ),
}
