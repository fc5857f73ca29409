"""As above."""


def display(*_objects):
    """Nothing to show it on."""


HTML = str
