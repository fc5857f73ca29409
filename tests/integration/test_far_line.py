"""A host that is far away: its round trip is known, and all streams are opened at once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hsops.agent import direct as agent_direct
from hsops.lab import sshd
from hsops.remote import direct
from tests.dump_maker import make_big
from tests.fetching import SERVER
from tests.hosts import host_spec, inventory_text, run_dir
from tests.slow_line import slow_line

MIB = 1 << 20


@pytest.mark.skipif(not os.access("/dev/net/tun", os.W_OK), reason="a line that is long needs /dev/net/tun")
def test_all_streams_at_once_where_a_round_trip_takes_long(tmp_path: Path) -> None:
    """A near host gets one first, and a second after a second."""
    make_big(tmp_path / "dumps/tiny", "s0", 40 * MIB)
    with slow_line(0.06) as line:
        sshd.start(tmp_path / "sshd", alias="far", extra=(f"ListenAddress {line.address}",))
        try:
            for name in ("ssh_config", "known_hosts"):
                file = tmp_path / "sshd" / name
                file.write_text(file.read_text().replace("127.0.0.1", line.address))
            spec = host_spec("far", tmp_path / "sshd").model_copy(update={"dumps": str(tmp_path / "dumps")})
            (tmp_path / "inventory.yaml").write_text(inventory_text(spec) + SERVER.format(host="far"))
            hsops = (sys.executable, "-m", "hsops", "-i", str(tmp_path / "inventory.yaml"), "fetch", "--json")
            words = ("--to", str(tmp_path / "to"), "--channel", "direct", "--streams", "1..3")
            done = subprocess.run(
                [*line.inside, *hsops, *words], capture_output=True, text=True, timeout=100, check=False, env=run_dir()
            )
        finally:
            sshd.stop(tmp_path / "sshd")

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    data = json.loads(done.stdout.splitlines()[-1])["data"]
    assert (data["samples"], data["streams"], data["channel"]) == (1, 3, "direct")


@pytest.mark.parametrize("window", [0, 64 << 10, 1 << 40])
def test_a_window_is_asked_for_where_it_is_allowed(window: int) -> None:
    """Both ends, before the first packet; where less is allowed the system's own way is better."""
    allowed = min(int(Path(f"/proc/sys/net/core/{way}mem_max").read_text()) for way in "rw")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        agent_direct._widen(listener, window)
        with direct._dial("127.0.0.1", listener.getsockname()[1], 5.0, window=window) as here, socket.socket() as usual:
            there, _ = listener.accept()
            with there:
                got = [
                    (sock.getsockopt(socket.SOL_SOCKET, which), usual.getsockopt(socket.SOL_SOCKET, which))
                    for sock, which in ((here, socket.SO_RCVBUF), (listener, socket.SO_SNDBUF))
                ]
    assert allowed >= 64 << 10
    for size, own in got:
        if 0 < window <= allowed:
            assert size == 2 * window  # the kernel counts its own part
        else:
            assert size == own or size < window
