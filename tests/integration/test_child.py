"""A child process that one thread reads and another leaves."""

from __future__ import annotations

import threading

import pytest

from hsops.core.command import Command
from hsops.core.errors import HsopsError
from hsops.remote.host import Stream
from hsops.remote.local import LocalHost

TALKER = "while read line; do echo $line; done; exec sleep 0.01"


def read(stream: Stream, heard: list[BaseException]) -> None:
    """Until its end; what it raises is kept."""
    try:
        for _ in stream:
            pass
    except BaseException as error:
        heard.append(error)


@pytest.mark.parametrize("how", ["drop", "leave"])
def test_one_reads_and_another_leaves(how: str) -> None:
    """Whoever comes first to the end of the child's output: both end, and the reader hears nothing but that."""
    heard = list[BaseException]()
    for _ in range(60):
        stream = LocalHost("here").bulk(Command(("sh", "-c", TALKER)), talk=True)
        reader = threading.Thread(target=read, args=(stream, heard))
        reader.start()

        stream.drop() if how == "drop" else stream.__exit__(None, None, None)
        reader.join(10)

        assert not reader.is_alive()
    assert [error for error in heard if not isinstance(error, HsopsError)] == []
