"""Errors that the command line shows as one sentence, without a traceback. Imports nothing of ours,
so that every layer may raise one.
"""

import errno
import re

_ADVICE = {
    errno.ENOSPC: "free some space, then run the command again",
    errno.ENOENT: "check the path",
    **dict.fromkeys(
        (errno.ENOTDIR, errno.EEXIST), "part of this path is a file; choose another path"
    ),
    errno.EISDIR: "name a file, not a folder",
    errno.EADDRINUSE: "choose another port",
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "choose a place that you may write to, or change its permissions",
    ),
}


class TaciturnError(Exception):
    """What is wrong, and what to do about it: a sentence for the person at the keyboard."""


def in_words(error: OSError) -> str:
    """Say what the operating system refused, where, and what to do; a temporary file goes by its
    final name.
    """
    where = (
        re.sub(r"\.([^/]+)\.[0-9a-f]+\.partial", r"\1", f"{error.filename}: ")
        if error.filename
        else ""
    )
    return (
        f"{where}{(error.strerror or str(error)).lower()};"
        f" {_ADVICE.get(error.errno or 0, 'fix that, then run the command again')}"
    )
