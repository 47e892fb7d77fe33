"""What faults.cpp is asked for and what its log says; and what a disk has after the power failed."""
import collections
import errno
import os
import pathlib
import stat

# Of each call the ways in which it may fail. A number is an errno.
WAYS = {
    "open": [errno.ENOSPC, errno.EMFILE, errno.EIO, errno.EROFS, errno.EACCES],
    "read": [errno.EIO, errno.EINTR, "short"],
    "write": [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EINTR, "short"],
    "sync": [errno.EIO, errno.ENOSPC],
    "rename": [errno.ENOSPC, errno.EIO, errno.EROFS],
    "truncate": [errno.ENOSPC, errno.EIO],
    "mkdir": [errno.ENOSPC, errno.EROFS, errno.EMLINK],
    "close": [errno.EIO, errno.ENOSPC],
    "link": [errno.ENOSPC, errno.EMLINK],
    "remove": [errno.EIO, errno.EROFS],
    "map": [errno.ENOMEM, errno.ENODEV],
    "list": [errno.EIO, errno.EMFILE],
    "mode": [errno.EPERM, errno.EROFS],
    "copy": [errno.ENOSPC, errno.EIO],
    "lock": [errno.ENOLCK],
}
TRANSIENT = {errno.EINTR, "short", "slow"}  # of which nobody may notice anything
BLOCK = 4096


def environment(library, under, log, call="", at=0, what="", stays=False, power=None):
    found = {"LD_PRELOAD": str(library), "FAULTS_UNDER": str(under), "FAULTS_LOG": str(log), "FAULTS_CALL": call, "FAULTS_AT": str(at),
             "FAULTS_WHAT": str(what), "FAULTS_STAYS": "1" if stays else "0"}
    return found | ({"FAULTS_POWER": str(power)} if power else {})


def lines(log):
    return log.read_text(errors="replace").splitlines() if log.exists() else []


def calls(log):
    """How many calls of each kind there were."""
    return collections.Counter(line.split()[1] for line in lines(log) if line.startswith("call "))


def faults(log):
    """(call, path) of each that failed."""
    return [tuple(line.split(" ", 2)[1:]) for line in lines(log) if line.startswith("fault ")]


class Contents:
    """Of one file: how much of it is on the disk, and what was written since."""

    def __init__(self):
        self.size = self.safe = 0
        self.loose = []


def lose_power(log, folder, random):
    """Takes from `folder` what a disk may lose of it: every write since the last sync of its file, and the newest names that no
    sync of their folder has made safe. Returns what was lost, for people."""
    files, names = collections.defaultdict(Contents), []
    safe_names = 0
    for line in lines(log):
        kind, _, rest = line.partition(" ")
        if kind == "write":
            inode, at, size = map(int, rest.split())
            files[inode].loose.append((at, size))
            files[inode].size = max(files[inode].size, at + size)
        elif kind == "cut":
            inode, size = map(int, rest.split())
            files[inode].size = size
            files[inode].safe = min(files[inode].safe, size)
            files[inode].loose = [(a, min(n, size - a)) for a, n in files[inode].loose if a < size]
        elif kind == "synced":
            inode, path = rest.split(" ", 1)
            files[int(inode)].loose, files[int(inode)].safe = [], files[int(inode)].size
            for i, name in enumerate(names):
                if os.path.dirname(name[1 if name[0] != "rename" else 2]) == path:
                    safe_names = max(safe_names, i + 1)
        elif kind == "make":
            inode, path = rest.split(" ", 1)
            if inode != "0":
                files[int(inode)] = Contents()
            names.append(("make", path))
        elif kind in ("rename", "remove"):
            names.append((kind, *rest.split("\t")))
    lost = []
    for name in reversed(names[random.randint(safe_names, len(names)) :]):
        lost.append(" ".join(name[:2]))
        forget(name)
    for place, _, inside in os.walk(folder):
        for file in (pathlib.Path(place) / f for f in inside):
            found = os.lstat(file)
            if stat.S_ISREG(found.st_mode) and files[found.st_ino].loose:
                lost.append(f"{tear(file, files[found.st_ino], random)} {file.name}")
    return lost


def forget(name):
    """Undoes one change of names."""
    kind, path, *rest = name
    if kind == "make":
        (os.rmdir if os.path.isdir(path) else os.unlink)(path)
    elif kind == "rename":
        os.rename(rest[0], path)
        if rest[1] != "-":
            os.link(rest[1], rest[0])
    elif rest[0] == "-":
        os.mkdir(path)
    else:
        os.link(rest[0], path)


def tear(file, contents, random):
    """What was not on the disk is gone, or zeros, or of some blocks zeros."""
    way = random.choice(["dropped", "zeroed", "torn"])
    if way == "dropped":
        os.truncate(file, contents.safe)
        return way
    with open(file, "r+b") as out:
        for at, size in contents.loose:
            for block in range(at, at + size, BLOCK):
                if way == "zeroed" or random.random() < 0.5:
                    out.seek(block)
                    out.write(bytes(min(BLOCK, at + size - block)))
    return way
