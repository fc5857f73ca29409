"""core.secret: what of a command line is a secret."""

from __future__ import annotations

import pytest

from hsops.core.secret import is_secret_variable, masked, value_of, without_keys
from hsops.diagnose.judge import judge
from hsops.diagnose.reading import from_log


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


def test_keys_in_a_line_of_a_log_are_masked() -> None:
    """SGLang prints the arguments it was given; numbers and names of the same line stay."""
    line = (
        "server_args=ServerArgs(tp_size=2, api_key='k3y', admin_api_key=\"k3y\", max_total_tokens=2048) --api-key k3y"
    )

    shown = without_keys(line)

    assert "k3y" not in shown and shown.startswith("server_args=ServerArgs(tp_size=2, api_key='***', admin_api_key=")
    assert "max_total_tokens=2048" in shown and without_keys("api_key=None, x=1") == "api_key=None, x=1"
    assert without_keys("Authorization: Bearer k3y") == "Authorization: Bearer ***"


def test_no_verdict_cites_a_key() -> None:
    """The last line of a log that says nothing else is evidence as it is, but for that."""
    verdict = judge(
        from_log("server.log", b"[2026-11-30 10:00:00] server_args=ServerArgs(api_key='k3y', tp_size=2)\n", tp=2)
    )

    assert any("api_key='***'" in finding.text for finding in verdict.evidence), verdict
    assert "k3y" not in str(verdict)
