"""``python -m hsops`` is the ``hsops`` command."""

from hsops.cli.app import main

if __name__ == "__main__":
    main()
