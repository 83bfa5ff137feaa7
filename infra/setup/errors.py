"""What set-up says when it cannot go on."""


class SetupError(Exception):
    """One line for the person at the terminal: what is wrong and what to do."""
