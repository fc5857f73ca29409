"""What the agent's refusals of a patch mean, and what to do about each."""

from __future__ import annotations

from hsops.core.errors import AgentError, HsopsError, LockedError
from hsops.remote import lock as lock_
from hsops.remote.agent import Agent


def explained(error: AgentError, agent: Agent) -> HsopsError:
    """The same error with what it means and what to do."""
    if isinstance(told := lock_.explained(error), LockedError) or error.code in ("no-lock", "not-ended"):
        return told
    why, fix = _MEANING.get(error.code, tuple(t.replace("{", "{{").replace("}", "}}") for t in (error.why, error.fix)))
    detail = {**error.detail, "python": agent.python}
    words = {key: str(value) for key, value in detail.items()}
    return AgentError(
        error.message,
        code=error.code,
        detail=error.detail,
        host=error.host,
        why=why.format_map(words),
        fix=fix.format_map(words),
    )


# code -> why it is refused, what to do; names in braces are of the refusal's own detail
_MEANING = {
    "no-sglang": (
        "the patch lives beside SGLang",
        "set hosts.<name>.python in inventory.yaml to the interpreter that runs SGLang (it is {python} now)",
    ),
    "not-importable": ("the payload could not be imported", "install SGLang as a package, not editable"),
    "not-writable": (
        "the patch lives beside SGLang",
        "deploy as the user that owns it, or install SGLang into a virtual environment of your own",
    ),
    "no-room": ("a disk of the host is full", "free some room there (df {path}), then run it again"),
    "not-written": ("the host's system refused", "put that right on the host, then run it again"),
    "changed-meanwhile": ("somebody else works there", "hsops deploy again"),
    "conflict": ("two patches on one file could not be taken out one by one", "hsops deploy --revert {patch}"),
    "no-root": ("the patch's files are relative to it", "set patches.<name>.root in inventory.yaml"),
    "bad-root": (
        "a script works on a copy of its files",
        "set patches.<name>.root to another folder",
    ),
    "too-large": ("a script works on a copy of its files", "set patches.<name>.root to a folder nearer to them"),
    "file-too-large": (
        "all of them travel to the client and back",
        "leave it out of the patch",
    ),
    "name-too-long": ("no file can be made there by that name", "give it a shorter one in the patch"),
    "same-file": ("it would be written twice", "name it once, by its real path"),
    "script-failed": ("nothing was changed: it ran on a copy", "correct the script, then hsops deploy again"),
    "script-touched": (
        "nothing was changed: it ran on a copy",
        "name the file in patches.{patch}.files, or leave it alone in the script",
    ),
    "script-escaped": (
        "this host forbids the view in which such a path leads to the copy (unshare: not permitted)",
        "let the script take its folder from args: ['{{root}}'], HSOPS_ROOT, or the folder it is started in",
    ),
    "foreign": ("a revert would undo that too", "hsops deploy --revert --force"),
    "not-a-file": ("hsops replaces files only", "look what it is for, and move it out of the way"),
    "damaged": (
        "what it remembers of {patch} cannot be trusted; nothing was changed",
        "bring SGLang's own files back (pip install --force-reinstall --no-deps sglang==<version>), then again; if it "
        "is refused still, move {folder} away: hsops deploy --force then takes over what lies there",
    ),
    "unfinished": (
        "the journal in {folder} knows what was there before",
        "put that right, then hsops deploy --status: it undoes the rest",
    ),
    "escapes-root": ("hsops changes nothing outside SGLang's folder", "replace the link by a real folder"),
}
