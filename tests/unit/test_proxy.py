"""The child that is the way to a host: ended once, by whoever comes first."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hsops.remote.proxy import Proxy
from hsops.remote.target import Target

TARGET = Target(
    name="far", destination="far", config=(), at_port=(), user="u", hostname="far", port=22, key_name="far",
    known_hosts=(Path("/dev/null"),), hash_names=False, accept_new=False, identities=(), certificates=(),
    identities_only=True, agent=False, jump="", proxy="cat", keepalive=5,
)  # fmt: skip


def test_who_watches_a_link_and_who_uses_it_may_close_it_at_once() -> None:
    """From several threads at the same moment, and again; why it ended is no question any more."""
    for _ in range(20):
        proxy, together = Proxy(TARGET, 5.0), threading.Barrier(4)

        def close(proxy: Proxy = proxy, together: threading.Barrier = together) -> None:
            together.wait(30)
            proxy.close()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _, close=close: close(), range(4)))
        proxy.close()

        assert proxy.failure() is None
