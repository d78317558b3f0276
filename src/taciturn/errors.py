"""What the command line says in one sentence, without a traceback. Imports nothing, so that every layer may raise one."""


class TaciturnError(Exception):
    """What is wrong, and what to do about it: a sentence for the person at the keyboard."""
