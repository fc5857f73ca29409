"""The server's port, seen from the host itself: who listens, and what it answers."""

import http.client
import re
import time
from typing import Any


def ask(port: int, path: str, timeout: float) -> "dict[str, Any]":
    """GET ``path`` from 127.0.0.1: ``status`` and the answer's first bytes, or ``error`` (refused, timeout, ...)."""
    started = time.monotonic()
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        link.request("GET", path)
        response = link.getresponse()
        answer: dict[str, Any] = {"status": response.status, "body": response.read(500).decode("utf-8", "replace")}
    except ConnectionRefusedError:
        answer = {"error": "refused"}
    except TimeoutError:
        answer = {"error": "timeout"}
    except (OSError, http.client.HTTPException) as error:
        answer = {"error": re.sub(r"\W+", "-", type(error).__name__).lower()}
    finally:
        link.close()
    return {**answer, "took_s": round(time.monotonic() - started, 2)}
