"""Sets the time after which a thread hands Python's lock to a waiting one: what is capture's choice of it worth?

A ``--forward-hooks`` factory with the config ``{"seconds": N}``.
"""

import sys


def every_pass(config):
    """The hook of any module."""

    def hook(module, args, output):
        sys.setswitchinterval(config["seconds"])

    return hook
