"""``python -m hsops``, and the ``hsops`` script."""

import gc
import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line. Ctrl-C in the moment while the libraries load is as quiet as later."""
    interrupt = signal.signal(signal.SIGINT, _leave)
    gc.set_threshold(50_000)  # what loading makes stays: looking for garbage in it is a twentieth of a short command
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it would ask every installed package for some
    from hsops.cli import ahead

    try:
        signal.signal(signal.SIGINT, ahead.interrupted)
        ahead.begin(sys.argv[1:])
        from hsops.cli.app import main as run

        signal.signal(signal.SIGINT, interrupt)
        run()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        ahead.drop()
        gc.freeze()  # nor is it worth looking through once more at the end: another twentieth


def _leave(_number: int, _frame: FrameType | None) -> None:
    """Nothing was begun yet. An exception could meet the interpreter where it prints it and goes on."""
    os._exit(130)


if __name__ == "__main__":
    main()
