"""What the operating system refused, in words, with the way out that its reason suggests."""

import errno

_WAYS_OUT = {
    errno.ENOENT: "check the path",
    errno.EACCES: "choose a place that you may use, or change its permissions",
    errno.EPERM: "choose a place that you may use, or change its permissions",
    errno.EROFS: "choose a place that can be written",
    errno.EEXIST: "a file stands where a folder should be; choose another path",
    errno.ENOTDIR: "a part of the path is a file; choose another path",
    errno.EISDIR: "it is a folder; name a file in it",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOSPC: "make room, or choose another place",
    errno.EDQUOT: "make room, or choose another place",
}


def reason(error: OSError | ValueError) -> str:
    """Return why, without the number of the error and the path; ValueError is raised for a NUL in a path."""
    return getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__


def way_out(error: OSError | ValueError) -> str:
    """Return what can be done, and nothing when the reason suggests nothing."""
    return _WAYS_OUT.get(getattr(error, "errno", None) or 0, "")
