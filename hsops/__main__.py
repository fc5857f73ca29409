"""``python -m hsops``, and the ``hsops`` script."""

import gc
import os
import sys


def main() -> None:
    """Run the command line. Ctrl-C in the moment while the libraries load is as quiet as later."""
    gc.set_threshold(50_000)  # what loading makes stays: looking for garbage in it is a twentieth of a short command
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it would ask every installed package for some
    try:
        from hsops.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
