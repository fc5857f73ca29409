"""``python -m hsops``, and the ``hsops`` script."""

import os
import sys


def main() -> None:
    """Run the command line. Ctrl-C in the moment while the libraries load is as quiet as later."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it would ask every installed package for some
    try:
        from hsops.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
