"""A practice host on this machine: a loopback OpenSSH server and a real SGLang on the CPU with a tiny model.

``up``, ``down`` and ``status`` are what the command, the demo and the tests use.
"""

from hsops.lab.lifecycle import Lab, Status, down, status, up

__all__ = ["Lab", "Status", "down", "status", "up"]
