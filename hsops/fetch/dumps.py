"""A folder of dumps: the host's manifest says what is there, a copy of it what is here."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from hsops.core.dumps import MANIFEST, SUFFIX, Sample, parse_sample
from hsops.core.errors import BadDataError, HsopsError
from hsops.core.events import Emit, Note, ignore
from hsops.fetch.folder import LOCAL, PIECES, stamp_from, stamp_of
from hsops.fetch.plan import File, Held, Stamp
from hsops.fetch.stream import Trouble
from hsops.remote.agent import Agent
from hsops.remote.dumps import Listing, list_samples

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*" + re.escape(SUFFIX) + r"\.([0-9a-f]{16}|[0-9a-f]{8})\.part\Z")


class DumpLayout:
    """How dumps lie in a local folder."""

    manifest = MANIFEST

    def parse(self, line: str) -> Held | None:
        """A line of the local manifest."""
        try:
            sample = parse_sample(line)
        except BadDataError:
            return None
        return Held(file_of(sample, line), stamp_from(json.loads(line).get(LOCAL)))

    def scan(self, path: Path) -> tuple[dict[str, Stamp], dict[str, int]]:
        """The dumps, and the part files with their sizes."""
        files, parts = dict[str, Stamp](), dict[str, int]()
        with os.scandir(path) as entries:
            for entry in entries:
                if not entry.is_file(follow_symlinks=False):
                    continue  # a link or a folder is never taken for a dump; a transfer replaces it by rename
                if entry.name.endswith(SUFFIX):
                    files[entry.name] = stamp_of(entry)
                elif _PART.match(entry.name.removesuffix(PIECES)):
                    parts[entry.name] = entry.stat(follow_symlinks=False).st_size
        return files, parts


def file_of(sample: Sample, line: str) -> File:
    """A sample's dump."""
    part = f"{sample.file}.{sample.checksum.partition(':')[2]}.part"
    return File(sample.id, sample.file, sample.bytes, sample.checksum, part, sample.checksum, line, sample.token_hash)


def files_of(listing: Listing) -> dict[str, File]:
    """The dumps that the host's manifest has, by name; failed samples have none."""
    return {s.file: file_of(s, listing.lines[s.id]) for s in listing.samples.values() if s.ok}


class Dumps:
    """A dump folder on the host. Meets ``hsops.fetch.fetch.Source``.

    Args:
        agent: on the host.
        path: the folder there.
        emit: told of lines of the manifest that make no sense.
    """

    def __init__(self, agent: Agent, path: str, emit: Emit) -> None:
        self.path, self.layout, self.refused = path, DumpLayout(), tuple[Trouble, ...]()
        self._agent, self._emit = agent, emit
        self.listing: Listing | None = None

    def look(self) -> dict[str, File]:
        """The dumps that the manifest has.

        Raises:
            HsopsError: there is none.
        """
        self.listing = _listing(self._agent, self.path, self._emit)
        self._emit = ignore  # bad lines are told once
        return files_of(self.listing)


def _listing(agent: Agent, source: str, emit: Emit) -> Listing:
    """The host's manifest.

    Raises:
        HsopsError: there is none.
    """
    listing = list_samples(agent, source)
    if not listing.exists:
        raise HsopsError(
            f"there are no dumps: {source} has no manifest",
            host=agent.host.name,
            fix="hsops extract PROMPTS writes them; hosts.<name>.dumps in inventory.yaml says where",
        )
    for reason in listing.unreadable[:3]:
        emit(Note(f"a line of the manifest was left out: {reason}", agent.host.name, "warn"))
    return listing
