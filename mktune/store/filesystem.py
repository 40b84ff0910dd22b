"""Which kind of file system holds a path: SQLite's write-ahead log needs memory shared by all who open the file."""

from __future__ import annotations

from pathlib import Path

# fmt: off
_NETWORK = {
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
    "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs",
}
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.ext2", "fuse.ext4", "fuse.ntfs-3g", "fuseblk"}
# fmt: on
_MOUNTS = Path("/proc/self/mountinfo")


def is_network(path: Path) -> bool:
    """True where `path` lies on a file system that several hosts may share, or one in user space that is unknown."""
    kind = filesystem_type(path)
    return kind in _NETWORK or (kind.startswith("fuse") and kind not in _LOCAL_FUSE)


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
