"""The folder on a cluster's shared file system through which a job is told, and tells."""

from __future__ import annotations

from ..errors import UserError
from ..github.settings import Token
from ..report.text import one_line
from .model import MachineError
from .remote import CommandFailed, Shell

JOURNAL_BYTES = 8000
_CALLERS = 3
# A folder that others may write to is one in which they may put a link, or read what is not theirs.
_MAKE = f"""
umask 077
mkdir -p -- "$1" || exit {_CALLERS}
[ -O "$1" ] && [ -z "$(find "$1" -maxdepth 0 -perm /022)" ] || {{
    echo "others own it or may write to it; give a folder of your own" >&2
    exit {_CALLERS}
}}
mkdir -- "$1/$2"
"""
# Never is a half of it to be seen: the job takes the file as soon as it is there.
_PUT = 'umask 077; cat >"$1.new" && mv -f -- "$1.new" "$1"'
_LIST = '[ -d "$1" ] || exit 0; exec find "$1" -mindepth 1 -maxdepth 1 -type d -printf "%f %T@\\n"'
_TAIL = '[ -e "$1" ] || exit 0; exec tail -c "$2" -- "$1"'
# A job may leave folders that nobody may write to, and NFS keeps a file's name while a process still has it open.
_REMOVE = """
for _ in 1 2 3 4 5; do
    [ -d "$1" ] || exit 0
    chmod -R u+rwX -- "$1" 2>/dev/null
    rm -rf -- "$1" && exit 0
    sleep 1
done
exit 1
"""


class Folder:
    """`path` with a folder for each machine, by its name. No name comes here that `Owner` has not made."""

    def __init__(self, shell: Shell, path: str) -> None:
        self._shell, self._path = shell, path.rstrip("/")

    def of(self, name: str) -> str:
        """The path of a machine's folder."""
        return f"{self._path}/{name}"

    def make(self, name: str) -> None:
        """Make a machine's folder, which nobody else may enter. Raises UserError where the folder will not do."""
        try:
            self._sh(_MAKE, self._path, name)
        except CommandFailed as error:
            message = f"{self._shell.where}: folder {self._path}: {one_line(error.said, 300)}"
            raise (UserError(message) if error.status == _CALLERS else MachineError(message)) from None

    def put(self, name: str, file: str, secret: Token) -> None:
        """Write a file that only the user may read, whole or not at all."""
        self._sh(_PUT, f"{self.of(name)}/{file}", stdin=secret.value.encode())

    def tail(self, name: str, file: str) -> str:
        """The end of a file; nothing where there is none."""
        return self._sh(_TAIL, f"{self.of(name)}/{file}", str(JOURNAL_BYTES))

    def remove(self, name: str) -> None:
        """Remove a machine's folder with all that is in it. One that is gone is removed."""
        self._sh(_REMOVE, self.of(name))

    def names(self) -> dict[str, float]:
        """The folders that are there, each with the time of its last change in seconds since 1970."""
        found: dict[str, float] = {}
        for line in self._sh(_LIST, self._path).splitlines():
            name, _, changed = line.rpartition(" ")
            found[name] = float(changed)
        return found

    def _sh(self, script: str, *arguments: str, stdin: bytes = b"") -> str:
        return self._shell.run(["sh", "-c", script, "sh", *arguments], stdin=stdin)
