"""Which kind of file system holds a path: SQLite's write-ahead log needs memory shared by all who open the file."""

from __future__ import annotations

from pathlib import Path

# fmt: off
_NETWORK = {
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.gcsfuse",
    "fuse.glusterfs", "fuse.juicefs", "fuse.s3fs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "nfs",
    "nfs4", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs",
}
# fmt: on
_MOUNTS = Path("/proc/self/mountinfo")


def is_network(path: Path) -> bool:
    """True where `path` lies on a file system that several hosts may share."""
    return filesystem_type(path) in _NETWORK


def filesystem_type(path: Path) -> str:
    """The type of the file system that holds `path` ("ext4", "nfs4" …); empty where it cannot be told."""
    try:
        lines = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    target = path.resolve()
    best, found = -1, ""
    for line in lines:
        before, _, after = line.partition(" - ")
        mount = Path(_unescape(before.split(" ")[4]))
        if len(mount.parts) >= best and target.is_relative_to(
            mount
        ):  # a later mount on the same place hides the earlier
            best, found = len(mount.parts), after.split(" ")[0]
    return found


def _unescape(text: str) -> str:
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(octal, character)
    return text
