"""The server's HTTP interface. httpx' one door."""

from __future__ import annotations

from typing import Any

import httpx

from hsops.core.dumps import RID_PREFIX
from hsops.core.errors import HsopsError, UnhealthyError
from hsops.core.prompts import Prompt
from hsops.core.runs import Keys

HEALTH_S = 25.0  # SGLang itself gives up on its health probe after 20 s
QUICK_S = 30.0
PATIENCE_S = 120.0
_UNDER_WAY = ("Duplicate request ID detected", "Duplicate request IDs detected")  # SGLang from 0.5.11 on; 0.5.10
SLOWEST_TOKENS_PER_S = 200.0  # prefill of a model on a CPU; far below any GPU


class RejectedError(HsopsError):
    """The server says that this request is wrong: sending it again will not help."""


class BrokenError(HsopsError):
    """The server failed at this request, or the connection broke; it may be dead."""


class BusyError(HsopsError):
    """The server has too much to do, or is at this very request already, and says so: the same request later."""


class KeyRefusedError(HsopsError):
    """The server does not take the key that it was shown, or wants one: no request will do better."""


class SilentError(HsopsError):
    """The server did not answer in time."""


class Server:
    """One SGLang server behind a port of this machine.

    Args:
        port: on 127.0.0.1.
        host: the host's name, for messages.
        concurrency: requests at once.
        keys: what the server wants to be shown.
    """

    def __init__(self, port: int, *, host: str, concurrency: int, keys: Keys = Keys()) -> None:
        limits = httpx.Limits(max_connections=concurrency + 1, max_keepalive_connections=concurrency + 1)
        self.host, self._concurrency, self._keys = host, concurrency, keys
        # trust_env off: a proxy variable must not send prompts anywhere but into the tunnel
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", limits=limits, trust_env=False)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def check_health(self) -> None:
        """One real probe (it generates a token).

        Raises:
            UnhealthyError: the answer is not 200.
        """
        try:
            status = self._client.get("/health", timeout=HEALTH_S).status_code
            said = f"/health says {status}"
        except httpx.HTTPError as error:
            status, said = 0, f"/health: {type(error).__name__}"
        if status != 200:
            raise UnhealthyError(
                f"the server runs but is not healthy: {said}",
                host=self.host,
                why="503 is normal while it starts",
                fix="hsops launch --wait-healthy waits for it; hsops diagnose says why it is not",
            )

    def info(self) -> dict[str, Any]:
        """SGLang's own account of its arguments and limits.

        Raises:
            KeyRefusedError: HTTP 401 or 403.
            BrokenError, SilentError: as ``generate``.
        """
        for path in ("/server_info", "/get_server_info"):  # the first since 0.5.4, the second before
            answer = self._send("GET", path, None, QUICK_S)
            if answer.status_code == 200:
                found: dict[str, Any] = answer.json()
                return found
        return {}

    def generate(self, prompt: Prompt) -> None:
        """Send one prompt; its dump is written by the server meanwhile, or a little later.

        Raises:
            KeyRefusedError: HTTP 401 or 403.
            RejectedError: HTTP 400 and its like.
            BusyError: HTTP 429 and 503; 400 when a request of this id is under way, from before a link broke.
            BrokenError: HTTP 500 and its like, or the connection broke.
            SilentError: no answer in time.
        """
        body = {
            "rid": RID_PREFIX + prompt.id,
            "input_ids": prompt.ids().tolist(),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        }
        # the prompt may wait for all the others that are under way
        patience = PATIENCE_S + prompt.count * self._concurrency / SLOWEST_TOKENS_PER_S
        self._judge(self._send("POST", "/generate", body, patience))

    def ask(self, body: dict[str, Any], tokens: int) -> Any:
        """One ``/generate`` of the caller's own, and its answer.

        Args:
            body: the request as SGLang takes it.
            tokens: how many it brings, for the deadline.

        Raises:
            KeyRefusedError, RejectedError, BrokenError, SilentError: as ``generate``.
        """
        answer = self._send("POST", "/generate", body, PATIENCE_S + tokens / SLOWEST_TOKENS_PER_S)
        self._judge(answer)
        try:
            return answer.json()
        except ValueError:
            raise BrokenError("/generate: the answer is not JSON", host=self.host) from None

    def abort(self, rid: str) -> None:
        """Ask the server to forget a request. One that it does not know is no error.

        Raises:
            KeyRefusedError, BrokenError, SilentError: as ``generate``.
        """
        self._send("POST", "/abort_request", {"rid": rid}, 5.0, self._keys.admin)

    def tokenize(self, texts: list[str]) -> list[list[int]]:
        """Token ids of texts, by the server's own tokenizer with its special tokens, as /generate would make them.

        Raises:
            KeyRefusedError, RejectedError, BrokenError, SilentError: as ``generate``.
        """
        answer = self._send("POST", "/tokenize", {"prompt": texts}, PATIENCE_S)
        self._judge(answer)
        tokens: list[list[int]] = answer.json()["tokens"]
        return tokens

    def _send(
        self, method: str, path: str, body: dict[str, Any] | None, patience: float, key: str = ""
    ) -> httpx.Response:
        """One request with ``key``, or with the key for any."""
        timeout = httpx.Timeout(patience, connect=15.0, write=60.0, pool=None)
        headers = bearer(key or self._keys.api)
        try:
            answer = self._client.request(method, path, json=body, timeout=timeout, headers=headers)
        except httpx.TimeoutException:
            raise SilentError(f"{path}: no answer in {patience:.0f} s", host=self.host) from None
        except httpx.HTTPError as error:
            raise BrokenError(f"{path}: {error or type(error).__name__}", host=self.host) from None
        if answer.status_code in (401, 403):
            raise KeyRefusedError(
                f"{path}: HTTP {answer.status_code}: {_reason(answer)}",
                host=self.host,
                why="the server wants an API key; hsops shows the one of its run's command line",
                fix="give it as api-key in args of servers.<name>, then hsops launch --replace --wait-healthy",
            )
        return answer

    def _judge(self, answer: httpx.Response) -> None:
        if answer.status_code == 200:
            return
        reason = _reason(answer)
        raise _kind(answer.status_code, reason)(f"HTTP {answer.status_code}: {reason}", host=self.host)


def _kind(status: int, reason: str) -> type[HsopsError]:
    """What a status other than 200 means for the same request once more."""
    if status in (429, 503):  # 503 is also SGLang's word for a queue that is full
        return BusyError
    if status == 400 and reason.startswith(_UNDER_WAY):
        return BusyError
    if status in (408, 425):  # a proxy's: the request itself is right
        return BrokenError
    return RejectedError if 400 <= status < 500 else BrokenError


def bearer(key: str) -> dict[str, str]:
    """The header that shows ``key``; none without."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def _reason(answer: httpx.Response) -> str:
    try:
        error = answer.json()["error"]
        return str(error["message"] if isinstance(error, dict) else error)[:300]
    except (ValueError, KeyError, TypeError):
        return " ".join(answer.text[:200].split())
