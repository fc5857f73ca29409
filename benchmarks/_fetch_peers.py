"""The other ways to bring files home, as their users would type them: the fastest cipher for all that can choose."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

CIPHER = "aes128-gcm@openssh.com"
ASYNCSSH = "asyncssh==2.21.1"

PARAMIKO = """
import os, sys, paramiko
host, port, user, key, known, source, to = sys.argv[1:]
paramiko.Transport._preferred_ciphers = ("aes128-gcm@openssh.com",) + paramiko.Transport._preferred_ciphers
client = paramiko.SSHClient()
client.load_host_keys(known)
client.connect(host, int(port), user, key_filename=key, allow_agent=False, look_for_keys=False)
sftp = client.open_sftp()
for name in sftp.listdir(source):
    sftp.get(source + "/" + name, to + "/" + name)
client.close()
"""
FABRIC = """
import sys, fabric
host, port, user, key, known, source, to = sys.argv[1:]
with fabric.Connection(host, user, int(port), connect_kwargs={"key_filename": key, "allow_agent": False}) as c:
    c.client.load_host_keys(known)
    for name in c.sftp().listdir(source):
        c.get(source + "/" + name, to + "/" + name)
"""
ASYNC = """
import asyncio, sys, asyncssh
host, port, user, key, known, source, to = sys.argv[1:]
async def main():
    async with asyncssh.connect(host, int(port), username=user, client_keys=[key], known_hosts=known,
                                encryption_algs=["aes128-gcm@openssh.com"]) as c:
        async with c.start_sftp_client() as sftp:
            await sftp.mget(source + "/*", to)
asyncio.run(main())
"""
TLS = """
import os, socket, ssl, sys, threading
side, identity, peer, port, folder, streams = sys.argv[1:]
streams = int(streams)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if side == "send" else ssl.PROTOCOL_TLS_CLIENT)
context.minimum_version = ssl.TLSVersion.TLSv1_3
context.check_hostname = False
context.verify_mode = ssl.CERT_REQUIRED
context.load_verify_locations(peer)
context.load_cert_chain(identity)
def send(plain, mine):
    with context.wrap_socket(plain, server_side=True) as sock:
        for name in mine:
            with open(os.path.join(folder, name), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                sock.sendall(f"{name} {size}\\n".encode().ljust(256))
                while data := file.read(1 << 20):
                    sock.sendall(data)
def receive(plain):
    view = memoryview(bytearray(1 << 18))
    with context.wrap_socket(plain) as sock:
        while head := exactly(sock, 256):
            name, size = head.split()
            left = int(size)
            with open(os.path.join(folder, name.decode()), "wb", buffering=0) as file:
                while left:
                    count = sock.recv_into(view[: min(left, len(view))])
                    file.write(view[:count])
                    left -= count
def exactly(sock, count):
    data = b""
    while len(data) < count and (more := sock.recv(count - len(data))):
        data += more
    return data
if side == "send":
    listener = socket.create_server(("127.0.0.1", int(port)))
    print("ready", flush=True)
    names = [n for n in sorted(os.listdir(folder)) if "safetensors" in n]
    work = [(listener.accept()[0], names[i::streams]) for i in range(streams)]
    threads = [threading.Thread(target=send, args=one) for one in work]
else:
    socks = [socket.create_connection(("127.0.0.1", int(port))) for _ in range(streams)]
    threads = [threading.Thread(target=receive, args=(s,)) for s in socks]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@dataclass(frozen=True)
class Peer:
    """One way.

    Args:
        argv: ``{to}`` is the empty folder; its files may lie one folder deeper.
        beside: starts what must run on the host, and returns it when it is ready.
    """

    argv: tuple[str, ...]
    beside: Callable[[], subprocess.Popen[str]] | None = None


@dataclass(frozen=True)
class Host:
    """The sshd of the benchmark.

    Args:
        folder: of ``hsops.lab.sshd``.
        port: on 127.0.0.1.
        user: who logs in.
    """

    folder: Path
    port: int
    user: str

    @property
    def ssh(self) -> str:
        """rsync's and tar's transport."""
        return f"ssh -F {self.folder / 'ssh_config'} -c {CIPHER}"


def peers(host: Host, source: Path, base: Path) -> Mapping[str, Peer]:
    """Those that are here, by name."""
    config, remote = str(host.folder / "ssh_config"), f"bench:{source}"
    plain = f"ssh -F {config}"
    words = ("127.0.0.1", str(host.port), host.user, str(host.folder / "client_key"), str(host.folder / "known_hosts"))
    found = {
        "scp": ("scp", "-q", "-r", "-F", config, "-c", CIPHER, remote, "{to}"),
        "sftp": ("sftp", "-q", "-r", "-F", config, "-c", CIPHER, remote, "{to}"),
        "rsync -a": ("rsync", "-a", "-e", plain, f"{remote}/", "{to}/"),
        "rsync -W, gcm": ("rsync", "-a", "-W", "--inplace", "-e", host.ssh, f"{remote}/", "{to}/"),
        "tar over ssh": ("sh", "-c", f"{host.ssh} bench tar -C {source} -cf - . | tar -C {{to}} -xf -"),
        "ssh cat, 2 streams": ("sh", "-c", _cat(host, source)),
        "paramiko get": (sys.executable, "-c", PARAMIKO, *words, str(source), "{to}"),
        "fabric get": (sys.executable, "-c", FABRIC, *words, str(source), "{to}"),
    }
    if shutil.which("rclone"):
        where = f"host=127.0.0.1,port={host.port},user={host.user},key_file={words[3]},known_hosts_file={words[4]}"
        rclone = ("rclone", "copy", "-q", f":sftp,{where}:{source}", "{to}")
        found["rclone"] = rclone
        found["rclone, 8 transfers"] = (*rclone, "--transfers", "8", "--sftp-disable-hashcheck")
    if shutil.which("lftp"):
        script = f"set sftp:connect-program '{host.ssh} -a -x'; mirror -P 4 --use-pget-n=4 {source} {{to}}"
        found["lftp, 4"] = ("lftp", "-e", f"{script}; quit", f"sftp://{host.user}:x@bench")
    if python := _asyncssh():
        found["asyncssh"] = (python, "-c", ASYNC, *words, str(source), "{to}")
    made = {name: Peer(tuple(argv)) for name, argv in found.items()}
    return {**made, "bare TLS, 2 streams": _bare_tls(source, base)}


def _cat(host: Host, source: Path) -> str:
    """Half of the files each: the most that pipes through ssh can bring."""
    one = "for f in $(ls {source} | grep safetensors | awk 'NR%2=={half}'); do cat {source}/$f; done"
    lines = [f'{host.ssh} bench "{one.format(source=source, half=half)}" > {{to}}/{half} &' for half in (0, 1)]
    return " ".join(lines).replace("$", "\\$") + " wait"


def _bare_tls(source: Path, base: Path) -> Peer:
    from hsops.remote.direct import Identity

    sides = {side: Identity.make() for side in ("send", "receive")}
    for side, identity in sides.items():
        (base / f"{side}.pem").write_text(identity.both)
        (base / f"{side}.crt").write_text(identity.certificate)
    port = "47311"

    def start() -> subprocess.Popen[str]:
        argv = [
            sys.executable,
            "-c",
            TLS,
            "send",
            str(base / "send.pem"),
            str(base / "receive.crt"),
            port,
            str(source),
            "2",
        ]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert process.stdout and process.stdout.readline() == "ready\n"
        return process

    own = (sys.executable, "-c", TLS, "receive", str(base / "receive.pem"), str(base / "send.crt"), port, "{to}", "2")
    return Peer(own, start)


def _asyncssh() -> str:
    """Python of a virtual environment with asyncssh; empty when it cannot be made."""
    venv = user_cache_path("hsops-bench") / "asyncssh"
    python = venv / "bin/python"
    if not python.exists():
        made = subprocess.run([sys.executable, "-m", "venv", str(venv)], check=False, capture_output=True)
        pip = [str(python), "-m", "pip", "install", "-q", ASYNCSSH]
        if made.returncode or subprocess.run(pip, check=False, capture_output=True).returncode:
            shutil.rmtree(venv, ignore_errors=True)
            return ""
    return str(python)
