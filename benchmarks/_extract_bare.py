"""The least that sends prompts, and its seconds: ``python -m benchmarks._extract_bare PORT PROMPTS CONCURRENCY``.

httpx' asynchronous client and a semaphore. It asks for no dump, no manifest and no reason: 200 is all it wants.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import httpx

from hsops.core.dumps import RID_PREFIX


async def send(port: int, prompts: list[dict[str, object]], concurrency: int) -> float:
    """Seconds from the first request to the last answer."""
    gate, limits = asyncio.Semaphore(concurrency), httpx.Limits(max_connections=concurrency)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", limits=limits, timeout=600.0, trust_env=False
    ) as client:

        async def one(prompt: dict[str, object]) -> None:
            body = {
                "rid": f"{RID_PREFIX}{prompt['id']}",
                "input_ids": prompt["input_ids"],
                "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            }
            async with gate:
                (await client.post("/generate", json=body)).raise_for_status()

        began = time.monotonic()
        await asyncio.gather(*map(one, prompts))
        return time.monotonic() - began


if __name__ == "__main__":
    read = [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines()]
    print(asyncio.run(send(int(sys.argv[1]), read, int(sys.argv[3]))))
