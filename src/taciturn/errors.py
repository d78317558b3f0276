"""Errors that the command line shows as one sentence, without a traceback.

They name the arguments of functions in backquotes, with a value where one says more: `held_out`,
`replace=True`. The command line writes its flag instead (cli/command_classes.py).

Imports nothing of ours, so that every layer may raise one.
"""

import errno
import re

_OTHER_PATH = "part of this path is a file; choose another path"
_OTHER_PLACE = "choose a place that you may write to, or change its permissions"
_ADVICE = {
    errno.ENOSPC: "free some space, then run the command again",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: _OTHER_PATH,
    errno.EEXIST: _OTHER_PATH,
    errno.EISDIR: "name a file, not a folder",
    errno.EADDRINUSE: "choose another port",
    errno.EACCES: _OTHER_PLACE,
    errno.EPERM: _OTHER_PLACE,
    errno.EROFS: _OTHER_PLACE,
}
_OTHER_ADVICE = "fix that, then run the command again"
# The name that `files.write_atomically` gives a file until it is complete.
_TEMPORARY_NAME = re.compile(r"\.([^/]+)\.[0-9a-f]+\.partial")


class TaciturnError(Exception):
    """What is wrong, and what to do about it: a sentence for the person at the keyboard."""


def describe_os_error(error: OSError) -> str:
    """Say what the operating system refused, where, and what to do."""
    reason = (error.strerror or str(error)).lower()
    advice = _ADVICE.get(error.errno or 0, _OTHER_ADVICE)
    if not error.filename:
        return f"{reason}; {advice}"
    where = _TEMPORARY_NAME.sub(r"\1", f"{error.filename}")
    return f"{where}: {reason}; {advice}"
