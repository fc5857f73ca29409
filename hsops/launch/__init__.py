"""Start a server and know that it is healthy.

``plan`` (pure) turns a server of the inventory into a command; ``start`` asks the host for it, once; ``wait_healthy``
follows the log, the processes and /health until the server really answers, dies or stalls. ``watch``, ``stall`` and
``health`` hold the judgements.
"""
