"""Work for other processes, which import nothing but this for it."""

import os


def doubled(one, other):
    return os.getpid(), 2 * one + other


def killed(one, here):
    if os.getpid() != here:
        os._exit(1)
    return one
