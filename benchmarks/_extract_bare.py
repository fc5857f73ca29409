"""The least that sends prompts, and its seconds: ``python -m benchmarks._extract_bare PORT PROMPTS CONCURRENCY HOW``.

``httpx``: its asynchronous client and a semaphore. ``streams``: asyncio alone, and HTTP in a few bytes.
Both ask for no dump, no manifest and no reason: 200 is all they want.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import httpx

from hsops.core.dumps import RID_PREFIX

Prompts = list[dict[str, object]]


async def send(port: int, prompts: Prompts, concurrency: int) -> float:
    """Seconds from the first request to the last answer, by httpx."""
    gate, limits = asyncio.Semaphore(concurrency), httpx.Limits(max_connections=concurrency)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", limits=limits, timeout=600.0, trust_env=False
    ) as client:

        async def one(prompt: dict[str, object]) -> None:
            async with gate:
                (await client.post("/generate", json=body_of(prompt))).raise_for_status()

        began = time.monotonic()
        await asyncio.gather(*map(one, prompts))
        return time.monotonic() - began


async def send_by_streams(port: int, prompts: Prompts, concurrency: int) -> float:
    """The same by asyncio's streams."""
    left = prompts[::-1]

    async def work() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while left:
            body = json.dumps(body_of(left.pop())).encode()
            length = f"Content-Length: {len(body)}"
            head = f"POST /generate HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n{length}\r\n\r\n"
            writer.write(head.encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert answer.startswith(b"http/1.1 200 "), answer
            await reader.readexactly(int(answer.partition(b"content-length:")[2].split()[0]))
        writer.close()

    began = time.monotonic()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    return time.monotonic() - began


def body_of(prompt: dict[str, object]) -> dict[str, object]:
    """The request."""
    return {
        "rid": f"{RID_PREFIX}{prompt['id']}",
        "input_ids": prompt["input_ids"],
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
    }


if __name__ == "__main__":
    read = [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines()]
    way = {"httpx": send, "streams": send_by_streams}[sys.argv[4]]
    print(asyncio.run(way(int(sys.argv[1]), read, int(sys.argv[3]))))
