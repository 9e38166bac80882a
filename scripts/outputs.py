# SPDX-License-Identifier: Apache-2.0
"""For the scripts in Python: what they write is checked before the work, whole at its end, or not there (userspace/util/output_file.h)."""
import ctypes
import difflib
import fcntl
import os
import shutil
import signal
import stat
import sys
import tempfile


class OutputFile:
    """Leaves the former file as it is until commit(). Ends the script with one line where the file cannot be written."""

    def __init__(self, script, option, path):
        self.label = f"{script}: {option}: cannot write {path}"
        self.path = os.path.realpath(path)
        self.descriptor = None
        folder = os.path.dirname(self.path)
        try:
            try:
                mode = os.stat(path).st_mode
            except FileNotFoundError:
                mode = None
            self.regular = mode is None or stat.S_ISREG(mode)
            if mode is not None and (stat.S_ISDIR(mode) or stat.S_ISBLK(mode)):
                self.refuse("it is a folder" if stat.S_ISDIR(mode) else "it is a block device")
            if not self.regular:
                self.descriptor = os.open(path, os.O_WRONLY)
                if stat.S_ISCHR(mode):
                    os.write(self.descriptor, b"")  # /dev/full refuses this already
                return
            if not os.path.isdir(folder):
                self.refuse(f"no folder {folder}")
            if mode is not None and not os.access(self.path, os.W_OK):
                self.refuse("Permission denied")
            # Without a name nothing stays behind, however the script ends.
            self.descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666)
            os.posix_fallocate(self.descriptor, 0, 4096)  # a disk that is full already
            os.ftruncate(self.descriptor, 0)
            if mode is not None:
                os.fchmod(self.descriptor, stat.S_IMODE(mode))
        except OSError as error:
            self.refuse(error.strerror)

    def refuse(self, why):
        sys.exit(f"{self.label}: {why}")

    def finish(self, content):
        data = content if isinstance(content, bytes) else content.encode()
        part = f"{self.path}.neotier-{os.getpid()}.part"
        try:
            while data:
                data = data[os.write(self.descriptor, data):]
            if self.regular:
                os.fsync(self.descriptor)
                # Only with a folder's descriptor is the link followed (linkat).
                here = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
                os.link(f"/proc/self/fd/{self.descriptor}", part, src_dir_fd=here, follow_symlinks=True)
                os.close(here)
                os.replace(part, self.path)
            os.close(self.descriptor)
        except OSError as error:
            if os.path.lexists(part):
                os.unlink(part)
            self.refuse(error.strerror)


def read_json(script, path, what, make):
    """What `make` makes of the JSON in `path`; ends the script with one line where it is none that `what` writes."""
    import json
    try:
        with open(path, encoding="utf-8") as text:
            return make(json.load(text))
    except OSError as error:
        sys.exit(f"{script}: {path}: {error.strerror}")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, ZeroDivisionError) as error:
        sys.exit(f"{script}: {path} is not what {what} writes: {error}")


class TemporaryFolder:
    """As userspace/util/temporary_folder.h: what a script that was killed left goes with the next one's start."""

    LOCK = ".neotier-lock"

    def __init__(self, prefix):
        parent = tempfile.gettempdir()
        for name in os.listdir(parent):
            if len(name) == len(prefix) + 9 and name.startswith(prefix + "."):
                self.remove_abandoned(os.path.join(parent, name))
        self.path = tempfile.mkdtemp(prefix=prefix + ".", dir=parent)
        unnamed = os.path.join(self.path, self.LOCK + ".new")
        self.lock = os.open(unnamed, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        os.rename(unnamed, os.path.join(self.path, self.LOCK))

    def remove_abandoned(self, path):
        try:
            lock = os.open(os.path.join(path, self.LOCK), os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass  # its owner lives
        finally:
            os.close(lock)

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


class NamedFolder(TemporaryFolder):
    """A folder of the same name each time. Who comes second waits; what a script that was killed left is cleared."""

    def __init__(self, path):
        self.path = path
        try:
            while not self.is_ours():
                pass
            for name in os.listdir(path):
                os.remove(os.path.join(path, name))
        except OSError as error:
            sys.exit(f"{path}: cannot be used as a folder for programs: {error.strerror}; remove it")

    def is_ours(self):
        os.makedirs(self.path, 0o700, exist_ok=True)
        self.lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        found = os.fstat(self.lock)
        if found.st_uid != os.geteuid():
            sys.exit(f"{self.path}: belongs to another user; ask them to remove it")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        try:
            # The one before may have removed it while this one waited.
            if os.stat(self.path).st_ino == found.st_ino:
                return True
        except FileNotFoundError:
            pass
        os.close(self.lock)
        return False


def end_with_parent():
    """For preexec_fn: the child is asked to end when this script does, however that is."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG


def no_such(what, word, known):
    """One line on a name that there is none of, with the nearest one that there is; as userspace/cli/words.h has it."""
    near = difflib.get_close_matches(word, known, n=1)
    meant = f"did you mean '{near[0]}'? " if near else ""
    return f"no {what} '{word}'; {meant}there are: {', '.join(known)}"
