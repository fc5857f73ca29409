"""One line of a manifest, for tests to vary with ``dataclasses.replace``."""

from hsops.core.dumps import Sample

SAMPLE = Sample(
    id="a",
    status="ok",
    tokens=3,
    boundaries=(1, 3),
    final="pre-norm",
    dtype="BF16",
    hidden_size=8,
    bytes=1000,
    checksum="xxh3:aaaaaaaaaaaaaaaa",
    reason="",
    run="1129-174200-abcd",
    patch="3f9c2a",
    sglang="0.5.9",
    token_hash="sha256:1111111111111111",
)
