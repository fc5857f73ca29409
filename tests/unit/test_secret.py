"""core.secret: what of a command line is a secret."""

from __future__ import annotations

import pytest

from hsops.core.secret import is_secret_variable, masked, value_of


def test_the_value_of_a_secret_flag_is_masked_in_both_spellings() -> None:
    """And nothing else, so that the line still says what was launched."""
    words = ["python", "--tp", "2", "--api-key", "--k3y", "--admin-api-key=k3y", "--ssl-keyfile-password", "k3y", "--x"]

    assert masked(words) == [
        "python", "--tp", "2", "--api-key", "***", "--admin-api-key=***", "--ssl-keyfile-password", "***", "--x",
    ]  # fmt: skip
    assert masked(["--num-reserved-decode-tokens", "512", "--api-key"])[1:] == ["512", "--api-key"]


@pytest.mark.parametrize(
    "words,found",
    [(["--api-key", "a"], "a"), (["--api-key=a=b"], "a=b"), (["--api-key", "a", "--api-key", "b"], "b"), ([], "")],
)
def test_a_flags_value_is_read_as_sglang_reads_it(words: list[str], found: str) -> None:
    """As one word or two; of two values the last."""
    assert value_of([*words, "--admin-api-key", "z"], "--api-key") == found


@pytest.mark.parametrize("name,secret", [("HF_TOKEN", True), ("OPENAI_API_KEY", True), ("SGLANG_MAX_TOKENS", False)])
def test_a_variable_is_told_by_its_name(name: str, secret: bool) -> None:
    """Numbers of tokens are none."""
    assert is_secret_variable(name) is secret
