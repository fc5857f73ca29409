"""Another server's rank 0: ``claimer.py FOLDER [fork]``; says ``ready`` when the dump folder is its own.

It keeps the folder until its standard input ends. With ``fork`` it is gone at once, and what stays is a child that it
has forked, as when a rank dies while it compiles.
"""

import os
import sys

from hsops.payload.hsops_hs_dump.claim import Claim
from hsops.payload.hsops_hs_dump.settings import Settings

if __name__ == "__main__":
    folder, *forks = sys.argv[1:]
    Claim(Settings("abc", (1,), "none", folder, "1130-other", check_ranks=False), 0).take()
    if forks and os.fork():
        os._exit(0)
    print("ready", flush=True)
    sys.stdin.read()
