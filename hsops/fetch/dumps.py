"""A folder of dumps: the host's manifest says what is there, a copy of it what is here."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hsops.core.dumps import MANIFEST, SUFFIX, Sample, latest, parse_sample
from hsops.core.errors import BadDataError, HsopsError, UnreachableError
from hsops.core.events import Emit, Note, ignore
from hsops.core.runs import Run
from hsops.fetch.folder import PIECES
from hsops.fetch.manifest import LOCAL, stamp_from, stamp_of
from hsops.fetch.plan import File, Held, Stamp
from hsops.fetch.tree import LOSSES, is_blind_to_case, refusals
from hsops.fetch.trouble import Trouble
from hsops.remote.agent import Agent
from hsops.remote.dumps import Listing, Lost, News, follow, list_samples
from hsops.remote.runs import alive_run, find_run

JOB_S = 15.0  # between two questions whether a job has ended
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
    name, checksum = sample.file, sample.checksum
    part = f"{name}.{checksum.partition(':')[2]}.part"
    return File(sample.id, name, sample.bytes, checksum, part, checksum, line, sample.token_hash)


def files_of(listing: Listing) -> dict[str, File]:
    """The dumps that the host's manifest has, by name; failed samples have none."""
    lines = listing.lines
    files = [file_of(s, lines[s.id]) for s in listing.samples.values() if s.ok]
    return {f.name: f for f in files}


@dataclass(frozen=True, slots=True)
class Until:
    """What ends following a dump folder; the first of them counts. Without one there is nothing to wait for.

    Args:
        pid: the process that writes there ends.
        count: the manifest names so many samples; 0: no matter.
        over: says whether whoever writes there has ended; a last look follows.
    """

    pid: int | None = None
    count: int = 0
    over: Callable[[], bool] | None = None

    @property
    def waits(self) -> bool:
        """More may come."""
        return self.pid is not None or self.count > 0 or self.over is not None


def end_of_run(agent: Agent, server: str, count: int) -> Until:
    """The end of the run that writes there, if one is alive; or ``count`` samples."""
    run = alive_run(agent, server)
    if run and run.job:  # its process is on another host
        return Until(count=count, over=_job_over(agent, run))
    return Until(run.pid if run else None, count)


def _job_over(agent: Agent, run: Run) -> Callable[[], bool]:
    """Whether the job has ended, asked now and then: many ask Slurm's controller."""
    due = time.monotonic() + JOB_S

    def over() -> bool:
        nonlocal due
        if time.monotonic() < due:
            return False
        due = time.monotonic() + JOB_S
        found = find_run(agent, run)
        return found is None or not found.alive

    return over


class Dumps:
    """A dump folder on the host. Meets ``hsops.fetch.fetch.Source``.

    Args:
        agent: on the host.
        path: the folder there.
        emit: told of lines of the manifest that make no sense, and of a link that is lost while it is followed.
        until: what ends following it.
        to: the local folder, whose file system may not tell upper from lower case.
        leave: names that come from elsewhere: another server that shared the prompts has them too.
        of: ids of the samples that are meant; None: all that the manifest names.
        lost: leaves out what the host has not any more; made again, it comes when it has its new line.
    """

    def __init__(
        self,
        agent: Agent,
        path: str,
        emit: Emit,
        until: Until | None = None,
        *,
        to: Path | None = None,
        leave: Collection[str] = (),
        of: Collection[str] | None = None,
        lost: Lost | None = None,
    ) -> None:
        self.path, self.layout, self.refused = path, DumpLayout(), tuple[Trouble, ...]()
        self._agent, self._emit, self._told, self._until = agent, emit, False, until or Until()
        self._blind, self._leave = to is not None and is_blind_to_case(to), leave
        self._of, self._lost = of, lost
        self.listing: Listing | None = None

    def look(self) -> dict[str, File]:
        """The dumps that the manifest has.

        Raises:
            HsopsError: there is none.
        """
        emit, self._told = (ignore if self._told else self._emit), True  # bad lines are told once
        self.listing = _listing(self._agent, self.path, emit, may_be_missing=self._until.waits)
        if self._lost:
            self.listing = self._lost.leave_out(self._agent, self.path, self.listing)
        if self._of is not None:
            meant = {id_: sample for id_, sample in self.listing.samples.items() if id_ in self._of}
            self.listing = replace(self.listing, samples=meant, lines={id_: self.listing.lines[id_] for id_ in meant})
        return self._wanted(files_of(self.listing))

    def _wanted(self, files: dict[str, File]) -> dict[str, File]:
        """Without those that would replace each other here."""
        assert self.listing
        if self._leave:
            files = {name: file for name, file in files.items() if name not in self._leave}
        if not self._blind:
            return files
        everything = files_of(self.listing)
        bad = refusals(everything, blind=True)
        self.refused = tuple(Trouble(everything[name].id, "name", why) for name, why in sorted(bad.items()))
        return {name: file for name, file in files.items() if name not in bad}

    def follow(self, stop: threading.Event) -> Iterator[dict[str, File]]:
        """Dumps as the manifest gets them. A link that is lost is looked for again.

        Raises:
            UnreachableError: it was lost several times with nothing new between.
        """
        assert self.listing
        losses, pid, over = 0, self._until.pid, self._until.over or (lambda: False)
        while not self._is_complete() and not stop.is_set():
            if not self._until.waits:
                return
            try:
                if losses:
                    yield self.look()
                with follow(self._agent, self.path, position=self.listing.position, pid=pid) as news:
                    for one in news:
                        if one.samples:
                            losses = 0
                            yield self._add(one)
                        if one.gone or self._is_complete() or stop.is_set():
                            return
                        if over():
                            yield self.look()
                            return
            except UnreachableError as error:
                losses += 1
                if losses > LOSSES:
                    raise
                self._emit(Note(f"the manifest is followed again: {error.message}", self._agent.host.name, "warn"))
                stop.wait(2 ** (losses - 1))

    def _add(self, news: News) -> dict[str, File]:
        assert self.listing
        held, lines = self.listing.samples, self.listing.lines
        for sample, line in zip(news.samples, news.lines, strict=True):
            if self._of is not None and sample.id not in self._of:
                continue
            if self._lost:
                self._lost.found(sample.id)
            if latest(filter(None, (held.get(sample.id), sample)))[sample.id] is sample:
                held[sample.id], lines[sample.id] = sample, line
        return self._wanted({s.file: file_of(s, lines[s.id]) for s in news.samples if held.get(s.id) is s and s.ok})

    def _is_complete(self) -> bool:
        assert self.listing
        return bool(self._until.count) and len(self.listing.samples) >= self._until.count


def _listing(agent: Agent, source: str, emit: Emit, *, may_be_missing: bool) -> Listing:
    """The host's manifest.

    Raises:
        HsopsError: there is none.
    """
    listing = list_samples(agent, source)
    if not listing.exists and not may_be_missing:
        raise HsopsError(
            f"there are no dumps: {source} has no manifest",
            host=agent.host.name,
            fix="hsops extract PROMPTS writes them; hosts.<name>.dumps in inventory.yaml says where",
        )
    for reason in listing.unreadable[:3]:
        emit(Note(f"a line of the manifest was left out: {reason}", agent.host.name, "warn"))
    return listing
