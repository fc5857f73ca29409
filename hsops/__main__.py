"""``python -m hsops``, and the ``hsops`` script."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C in the moment while the libraries load is as quiet as later."""
    try:
        from hsops.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
