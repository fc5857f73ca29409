"""remote.server: what an answer other than 200 means for the same request once more."""

from __future__ import annotations

import httpx
import pytest

from hsops.core.dumps import token_bytes
from hsops.core.errors import HsopsError
from hsops.core.prompts import Prompt
from hsops.remote.server import BrokenError, BusyError, RejectedError, Server


@pytest.mark.parametrize(
    "status, said, kind",
    [
        (400, "Duplicate request ID detected: hs-a", BusyError),  # 0.5.11 to 0.5.23
        (400, "Duplicate request IDs detected: ['hs-a']", BusyError),  # 0.5.10
        (400, "The input is longer than the model's context length", RejectedError),
        (422, "Duplicate request ID detected: hs-a", RejectedError),  # not SGLang's
        (503, "The request queue is full.", BusyError),
        (429, "slowly", BusyError),
        (408, "a proxy's", BrokenError),
        (500, "Internal Server Error", BrokenError),
    ],
)
def test_what_a_refusal_means(status: int, said: str, kind: type[HsopsError]) -> None:
    """As SGLang words it, at its place in the JSON."""
    answer = httpx.Response(status, json={"error": {"message": said}})
    server = Server(1, host="lab", concurrency=1)
    server._client = httpx.Client(base_url="http://lab", transport=httpx.MockTransport(lambda _: answer))

    with server, pytest.raises(HsopsError) as found:
        server.generate(Prompt("a", 1, token_bytes([1, 2])))

    assert type(found.value) is kind
    assert found.value.message == f"HTTP {status}: {said}"
