"""extract.drive: what becomes of a prompt at one server, without a server."""

from __future__ import annotations

from dataclasses import replace

from hsops.core.dumps import token_bytes, token_hash
from hsops.core.errors import HsopsError
from hsops.core.events import ignore
from hsops.core.prompts import Prompt
from hsops.extract.drive import Drive
from hsops.extract.gate import Gate
from hsops.extract.journal import Journal
from hsops.extract.ledger import Ledger
from hsops.extract.plan import Capture
from hsops.extract.pool import Pool
from hsops.remote.dumps import News
from tests.running import wait_for
from tests.samples import SAMPLE

WANTED = Capture((1, 3), "pre-norm")


class Server:
    """Has the line of a prompt's dump in the ledger before it answers."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self.asked = ledger, list[str]()

    def generate(self, prompt: Prompt) -> None:
        """As ``remote.server.Server``."""
        self.asked.append(prompt.id)
        sample = replace(SAMPLE, id=prompt.id, tokens=prompt.count, token_hash=token_hash(prompt.tokens))
        self._ledger.apply(News(samples=(sample,)))


def examine(error: HsopsError) -> None:
    """No connection breaks here."""
    raise AssertionError(error)


def test_a_dump_larger_than_the_disk_is_its_prompts_own_failure() -> None:
    """The others get theirs, the server is not lost, and nothing is told of room that somebody could make."""
    prompts = [Prompt(f"p{i}", i, token_bytes([1] * (90_000 if i == 1 else 3))) for i in range(4)]
    ledger = Ledger(WANTED, [SAMPLE], free=1 << 20, total=1 << 20, patience=0.0)
    server, pool = Server(ledger), Pool(prompts, Journal(None, ignore))
    drive = Drive("s", server, ledger, Gate(2, None), pool, examine=examine, known={})  # type: ignore[arg-type]

    drive.start(2)
    wait_for(lambda: drive.wait(0.1), "its workers end")

    assert ledger.error is None and pool.settled
    assert sorted(server.asked) == ["p0", "p2", "p3"] == sorted(sample.id for sample in pool.samples)
    (failure,) = pool.failures
    assert failure.id == "p1" and failure.reason.startswith("not sent: its dump of 5,")
    assert "too large for the dump file system, which has 1,048,576 with 20,971 kept free" in failure.reason
