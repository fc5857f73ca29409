"""The processor that SGLang asks a multimodal model for (``--trust-remote-code``): it takes no image and no text.

Kimi-K2.5's own needs its tokenizer and an image library. The lab's prompts are token ids, so all that is left of it is
what SGLang reads when it starts.
"""

from __future__ import annotations

from typing import Any

from transformers.processing_utils import ProcessorMixin

PLACEHOLDER = 255  # of config.json


class NoTokenizer:
    """Answers the questions about special tokens; every other attribute is None."""

    eos_token_id, pad_token_id = 1, 2

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)

    def get_vocab(self) -> dict[str, int]:
        """No words."""
        return {}

    def get_added_vocab(self) -> dict[str, int]:
        """None."""
        return {}

    def encode(self, *_args: Any, **_kwargs: Any) -> list[int]:
        """Whatever the text, the placeholder."""
        return [PLACEHOLDER]

    def convert_tokens_to_ids(self, _token: str) -> int:
        """The placeholder."""
        return PLACEHOLDER

    def convert_ids_to_tokens(self, token: int) -> str:
        """Its number."""
        return str(token)


class NoMedia(NoTokenizer):
    """How images would be cut into patches."""

    def __init__(self) -> None:
        self.media_proc_cfg = {
            "patch_size": 14,
            "merge_kernel_size": 2,
            "in_patch_limit": 64,
            "patch_limit_on_one_side": 16,
            "fixed_output_tokens": None,
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
        }


class NoMediaProcessor(ProcessorMixin):  # type: ignore[misc]
    """The parts that SGLang takes a processor apart into."""

    attributes: tuple[str, ...] = ()

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self.tokenizer = self.image_processor = NoTokenizer()
        self.media_processor = NoMedia()
        self.chat_template = None

    @classmethod
    def from_pretrained(cls, *_args: Any, **_kwargs: Any) -> NoMediaProcessor:
        """There is nothing to load."""
        return cls()

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        """Nothing can be processed."""
        raise NotImplementedError("the lab's tiny model takes token ids only")
