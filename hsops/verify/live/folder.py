"""The check folder on the host: one dump folder a rank, apart from the data set, and emptied afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

from hsops.core.command import Command
from hsops.core.deadline import QUICK
from hsops.core.dumps import CHECK_FOLDER, SUFFIX
from hsops.core.errors import HsopsError
from hsops.remote.agent import Agent
from hsops.remote.dumps import list_samples
from hsops.verify.live.evidence import Taken

LINES_S = 30.0  # from HTTP 200 to the lines of all ranks; the writers need milliseconds
POLL_S = 0.2
# $1 the folder, $2 this verify's token. What others still use stays, but not what a killed one left an hour ago;
# without any dump left all of it goes. $3: the server may still write what was aborted: it ends its pass first, which a
# busy machine may take seconds for. So all is removed until nothing has come for three seconds, or for fifteen at most.
_CLEAR = """set -e
cd "$1" 2>/dev/null || exit 0
mine() { find . -type f -name "$1.*" -print -exec rm -f {} + ; }
still=0; rounds=0; mine "$2" >/dev/null
while [ "$3" = later ] && [ $still -lt 3 ] && [ $rounds -lt 15 ]; do
  sleep 1; rounds=$((rounds + 1)); still=$((still + 1)); [ -z "$(mine "$2")" ] || still=0
done
find . -type f -name '*.safetensors*' -mmin +60 -exec rm -f {} +
left=$(find . -type f -name '*.safetensors*')
[ -n "$left" ] || { cd /; rm -rf "$1"; }"""

Lines = dict[str, tuple[Taken | None, ...]]  # by request, one entry a rank


class CheckFolder:
    """``<dump dir>/check`` of one server.

    Args:
        agent: on its host.
        dump_dir: the server's dump folder there.
        ranks: how many write.
        token: what the ids of this verify begin with.
    """

    def __init__(self, agent: Agent, dump_dir: str, *, ranks: int, token: str) -> None:
        self.agent, self.path, self.ranks, self.token = agent, f"{dump_dir}/{CHECK_FOLDER}", ranks, token
        self.under_way: tuple[str, ...] = ()  # ids of requests that are not answered yet

    def rank(self, rank: int) -> str:
        """The folder of one rank."""
        return f"{self.path}/rank{rank}"

    def sample(self, name: str) -> str:
        """The sample id of a request."""
        return f"{self.token}.{name}"

    def wait(self, names: Sequence[str], *, ranks: int | None = None, seconds: float = LINES_S) -> Lines:
        """The lines of all ranks, or of the first ``ranks``, for these requests; None where none came in time."""
        until, found = time.monotonic() + seconds, dict[int, dict[str, Taken]]()
        wanted = range(self.ranks if ranks is None else ranks)
        while True:
            for rank in wanted:
                if len(found.get(rank, ())) < len(names):
                    found[rank] = self._read(rank, names)
            if all(len(lines) == len(names) for lines in found.values()) or time.monotonic() > until:
                return {name: tuple(found[rank].get(name) for rank in wanted) for name in names}
            time.sleep(POLL_S)

    def file(self, rank: int, name: str) -> str:
        """Path of a dump on the host."""
        return f"{self.rank(rank)}/{self.sample(name)}{SUFFIX}"

    def clear(self, *, busy: bool) -> None:
        """Remove this verify's dumps; with ``busy`` also those that still come, for what was under way.

        Raises:
            HsopsError: they could not be removed.
        """
        argv = ("sh", "-c", _CLEAR, "sh", self.path, self.token, "later" if busy else "now")
        done = self.agent.host.run(Command(argv), deadline=QUICK)
        if done.exit != 0:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise HsopsError(
                f"the check dumps cannot be removed: {said[-1] if said else f'exit {done.exit}'}",
                host=self.agent.host.name,
                fix=f"rm -r {self.path} there",
            )

    def _read(self, rank: int, names: Sequence[str]) -> dict[str, Taken]:
        listing = list_samples(self.agent, self.rank(rank))
        ids = {self.sample(name): name for name in names}
        return {ids[i]: Taken(s, _passes(listing.lines, i)) for i, s in listing.samples.items() if i in ids}


def _passes(lines: Mapping[str, str], sample: str) -> tuple[int, ...]:
    raw = json.loads(lines[sample]).get("passes")
    return tuple(n for n in raw if type(n) is int) if isinstance(raw, list) else ()
