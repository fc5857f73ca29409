"""Conversations through real tokenizers of real transformers, by the lab's interpreter; no server is needed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hsops.core.errors import HsopsError, RemoteError
from hsops.core.events import Event, Progress, ignore
from hsops.core.prompts import Prompt
from hsops.lab import Lab
from hsops.remote.agent import Agent
from hsops.remote.local import LocalHost
from hsops.remote.tokenizer import Tokenizer, tokenise

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

MAKE = Path(__file__).parents[1] / "tokenizer_maker.py"

CHATML = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
MARKED = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}
{{- m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}
{%- endfor %}"""
# thoughts only in the turn after the last question, as newer templates have it
THINKING = """\
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}{% if m.role == 'assistant' %}{% set said = m.content.split('</think>')[-1].strip() %}
{%- if loop.index0 > ns.last %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' + said + '<|im_end|>\n' }}
{%- else %}{{ '<|im_start|>assistant\n' + said + '<|im_end|>\n' }}{% endif %}
{%- else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
# asks for a reply with a thought that it does not show in the whole
FORCED = CHATML.replace("assistant\n' }}", "assistant\n<think>\n' }}")
# the header's last letter and the answer's first ones make one token, as there is one for them
CROSSING = CHATML.replace("m.role + '\n'", "m.role + ':w'").replace("assistant\n'", "assistant:w'")
TOOLS = """\
{{- tools | tojson }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.tool_calls %}
{{- m.tool_calls[0].function.name + '(' + m.tool_calls[0].function.arguments.x | string + ')' }}{% else %}
{{- m.content }}{% endif %}{{ '<|im_end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

BARE = "{% for m in messages %}{{ m.content + (' / ' if m.role == 'user' else '<s>') }}{% endfor %}"

TURNS = [
    ("system", "be brief"),
    ("user", "q1 é"),
    ("assistant", "a1 ü"),
    ("user", "q2"),
    ("assistant", "<think>why</think>a2\n"),
]
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 7}}}]}
WHOLE = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in TURNS)


def value(*turns: tuple[str, str] | dict[str, Any], **more: Any) -> dict[str, Any]:
    """A conversation."""
    said = [turn if isinstance(turn, dict) else {"role": turn[0], "content": turn[1]} for turn in turns]
    return {"messages": said, **more}


def make(lab: Lab, **asked: Any) -> dict[str, list[Any]]:
    """What ``tokenizer_maker.py`` answers."""
    argv = [str(lab.layout.python), str(MAKE)]
    done = subprocess.run(argv, input=json.dumps(asked), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_mask_is_what_the_assistant_says(lab: Lab, tmp_path: Path) -> None:
    """Of every turn, from behind its header to the token that ends it; what cannot be told for certain is refused."""
    question, answer = ("user", "q"), ("assistant", "ww")
    marked = "a1 ü<|im_end|><think>why</think>a2\n<|im_end|>"
    two = [
        # the kind of tokenizer, its template, a conversation, what the mask marks of it or why it is refused
        ("fast", CHATML, value(*TURNS), marked),
        ("fast", MARKED, value(*TURNS), marked),
        ("own", CHATML, value(*TURNS), marked),
        (
            "own",
            MARKED,
            value(*TURNS),
            "messages[2]: the template asks for no reply",
        ),  # no offsets: no use of the marks
        ("fast", BARE, value(question, answer), "ww<s>"),
        ("fast", THINKING, value(*TURNS), "a1 ü<|im_end|><think>\n\n</think>\n\na2<|im_end|>"),
        ("fast", TOOLS, value(question, CALL, ("tool", "49"), tools=[{"name": "f"}]), "f(7)<|im_end|>"),
        ("fast", CHATML, value(question), ""),
        ("fast", "<s>" + CHATML, value(question, answer), "ww<|im_end|>"),
        ("fast", FORCED, value(question, answer), "messages[1]: what the template renders before it is not how"),
        ("fast", CROSSING, value(question, answer), "messages[1]: a token stands across its border"),
        ("fast", "{{ raise_exception('only one') }}", value(question), "TemplateError: only one"),
    ]
    folders = [str(tmp_path / str(i)) for i in range(len(two))]
    bare = str(tmp_path / "bare")
    wanted = {"mode": "auto", "trust": False, "revision": "", "template": ""}

    made = make(
        lab,
        make=[
            *((folder, kind, text) for folder, (kind, text, *_) in zip(folders, two, strict=True)),
            (bare, "fast", ""),
        ],
        cases=[(folder, said) for folder, (_, _, said, _) in zip(folders, two, strict=True)],
        loads=[{**wanted, "path": folders[2]}, {**wanted, "path": bare}, {**wanted, "path": str(tmp_path / "none")}],
    )

    cases = made["cases"]
    for (kind, text, _, expected), found in zip(two, cases, strict=True):
        came = found.get("marked", found.get("error"))
        assert came.startswith(expected) if "error" in found else came == expected, (kind, text, found)
    assert [found["whole"] for found in cases[:3]] == [WHOLE] * 3
    assert cases[6]["whole"].startswith('[{"name": "f"}]')
    assert cases[8]["whole"].count("<s>") == 1  # the template's; the tokenizer adds none
    untrusted, loaded, missing = made["loads"]
    assert "contains custom code" in untrusted
    assert loaded.endswith("Fast") or loaded == "TokenizersBackend"
    assert "none" in missing


def test_prompts_go_there_in_batches(lab: Lab, tmp_path: Path) -> None:
    """And come back in their order, texts among them, with progress; what cannot be used is told."""
    folder, bare = str(tmp_path / "model"), str(tmp_path / "bare")
    make(lab, make=[(folder, "own", CHATML), (bare, "fast", "")])
    host = LocalHost("here")
    agent = Agent(host, python=str(lab.layout.python), state_dir=str(tmp_path / "state"))
    chats = [json.dumps(value(("user", "q"), ("assistant", f"a{i}"))) for i in range(200)]
    prompts = [
        Prompt(f"p{i}", i, b"", messages=chats[i]) if i % 3 else Prompt(f"p{i}", i, b"", f"t{i}") for i in range(200)
    ]
    told: list[Event] = []

    made = tokenise(agent, Tokenizer(folder, trust=True), prompts, emit=told.append, env={})

    texts = ["".join(chr(id_) for id_ in Prompt("x", 1, one.tokens).ids() if id_ < 256) for one in made]
    assert [bool(one.mask) for one in made] == [bool(i % 3) for i in range(200)]
    assert [text.rstrip("\n").endswith(f"{'a' if i % 3 else 't'}{i}") for i, text in enumerate(texts)] == [True] * 200
    assert sum(made[199].mask) == len("a199") + 1
    assert isinstance(told[-1], Progress) and (told[-1].done, told[-1].total) == (200, 200)

    (tmp_path / "own.jinja").write_text("{% for m in messages %}[\\n{{ m.content }}]{% endfor %}")  # as SGLang reads it
    (one,) = tokenise(agent, Tokenizer(bare, template=str(tmp_path / "own.jinja")), prompts[1:2], emit=ignore, env={})
    assert one.error.startswith("messages[1]")
    for tokenizer, message in (
        (Tokenizer(bare), "has no chat template"),
        (Tokenizer(bare, template="llama-2"), "the server's chat-template llama-2 is SGLang's own"),
    ):
        with pytest.raises(HsopsError, match=message):
            tokenise(agent, tokenizer, prompts[1:2], emit=ignore, env={})
    other = Agent(host, python="/bin/false", state_dir=str(tmp_path / "state"))
    with pytest.raises(RemoteError, match=r"the tokenizer's process ended \(exit 1\)"):
        tokenise(other, Tokenizer(bare), prompts[:1], emit=ignore, env={})
    host.close()
