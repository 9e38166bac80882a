# SPDX-License-Identifier: Apache-2.0
"""Debian's llama.cpp (scripts/engines llama.cpp), run for tests and benchmarks: in its folder, with a work folder of
the caller, as much memory as it is given, and a cold page cache where one is wanted. All of it as root."""
import contextlib
import dataclasses
import glob
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
FOLDER = os.path.join(ROOT, "build", "engines", "llama.cpp")
LIBRARIES = os.path.join(ROOT, "build", "lib")
BACKEND = "libggml-neotier.so"
INSIDE, DATA = "/mnt", "/media"  # where a program sees the work folder, and the recorded routing
TRIES = 8  # of a program that lost the end of what it said

# What a program needs to see: processes, devices, and nothing else of this machine.
MOUNTS = """
mount -t proc proc "$0/proc" && mount -t sysfs -o ro sys "$0/sys" && mount -t tmpfs shm "$0/dev/shm" || exit 125
for name in null zero full random urandom; do
  [ -c "$0/dev/$name" ] || : > "$0/dev/$name"
  mount --bind "/dev/$name" "$0/dev/$name" || exit 125
done
while [ "$1" != -- ]; do mount --bind "$1" "$0$2" || exit 125; shift 2; done
shift
exec chroot "$0" "$@"
"""

READ_COUNTS = """
import gguf, json, sys
tensors = gguf.GGUFReader(sys.argv[1]).tensors
print(json.dumps({tensor.name.split(".")[1]: [int(nr) for nr in tensor.data.ravel()] for tensor in tensors
                  if tensor.name.endswith("ffn_gate_exps.weight.counts")}))
"""


def why_not():
    """Why llama.cpp cannot be run here, in a line; None where it can."""
    if os.geteuid() != 0:
        return "not root: it runs in a folder of its own, by chroot"
    check = subprocess.run([os.path.join(ROOT, "scripts", "engines"), "--check", "llama.cpp"], capture_output=True,
                           text=True)
    return (check.stdout + check.stderr).strip().splitlines()[-1] if check.returncode else None


def version():
    """Of what is installed in the folder, as Debian numbers it."""
    return subprocess.run(
        ["dpkg-query", f"--admindir={FOLDER}/var/lib/dpkg", "-W", "-f", "${Version}", "llama.cpp-tools"],
        check=True, capture_output=True, text=True).stdout.rpartition(":")[2]


def no_backend():
    """Why the backend cannot be run here; None where it can."""
    path = os.path.join(LIBRARIES, BACKEND)
    return None if os.path.exists(path) else f"no build/lib/{BACKEND}"


def own_mounts():
    """What the caller mounts is seen by nobody else, and ends with it, however it ends. Starts the program anew."""
    if os.environ.get("NEOTIER_OWN_MOUNTS") != "1":
        os.environ["NEOTIER_OWN_MOUNTS"] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, "-B", *sys.argv])


@dataclasses.dataclass
class Result:
    status: int                # of the program; -9: killed
    out: str
    err: str
    seconds: float
    rss: int                   # bytes, the most at a time, mapped files among them
    peak: int = None           # bytes, of the memory cgroup, page cache among them; None: ran without one
    tries: int = 1             # more than one: the end of its output was lost before
    prompt_per_s: float = None
    tokens_per_s: float = None
    stats: dict = None         # what the backend counted

    def said(self):
        """What it wrote that is no plain progress, for messages of failed tests."""
        return f"exit status {self.status}; " + " | ".join(self.err.strip().splitlines()[-6:])


class MemoryGroup:
    """A memory cgroup, of either version. `limit` 0: none, it only measures."""
    number = 0

    def __init__(self, limit=0):
        self.v2, home = self.find()
        MemoryGroup.number += 1
        self.path = os.path.join(home, f"neotier-llama-{os.getpid()}-{MemoryGroup.number}")
        os.mkdir(self.path)
        if limit:
            self.write("memory.max" if self.v2 else "memory.limit_in_bytes", limit)
            # Without swap that counts a limit is a limit. A kernel without swap has no such file.
            for name, value in (("memory.swap.max", 0),) if self.v2 else (("memory.memsw.limit_in_bytes", limit),):
                with contextlib.suppress(OSError):
                    self.write(name, value)

    @staticmethod
    def find():
        """(whether it is version 2, the folder of all groups); OSError where there is none to be had."""
        with open("/proc/mounts", encoding="ascii", errors="replace") as file:
            mounts = [line.split()[1:4] for line in file]
        for where, kind, how in mounts:
            if kind == "cgroup" and "memory" in how.split(","):
                return False, where
        for where, kind, _ in mounts:
            if kind == "cgroup2":
                with open(os.path.join(where, "cgroup.subtree_control"), encoding="ascii") as file:
                    if "memory" in file.read().split():
                        return True, where
        raise OSError("no memory cgroup is mounted")

    @staticmethod
    def why_not():
        try:
            MemoryGroup().close()
        except OSError as error:
            return f"no memory cgroup can be had: {error}"
        return None

    def write(self, name, value):
        with open(os.path.join(self.path, name), "w", encoding="ascii") as file:
            file.write(str(value))

    def read(self, name):
        with open(os.path.join(self.path, name), encoding="ascii") as file:
            return int(file.read())

    def join(self):
        """By the process that is to be in it."""
        self.write("cgroup.procs", os.getpid())

    def peak(self):
        return self.read("memory.peak" if self.v2 else "memory.max_usage_in_bytes")

    def close(self):
        if not self.v2:
            with contextlib.suppress(OSError):
                self.write("memory.force_empty", 0)
        for _ in range(50):  # a process that was killed takes a while to leave
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
            if not os.path.exists(self.path):
                return
            time.sleep(.1)


@contextlib.contextmanager
def disk(folder, size, read_ahead=128 << 10):
    """A file system of its own on a loop device with the read-ahead of an ordinary disk: one that reads 8 MiB for each
    fault, as some virtual disks do, punishes mmap beyond reason. The caller has called own_mounts(). Yields a folder;
    OSError where no loop device can be had."""
    image, where = os.path.join(folder, "disk.img"), os.path.join(folder, "disk")
    os.makedirs(where, exist_ok=True)

    def call(*words):
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"{words[0]}: {(done.stderr.strip().splitlines() or [done.returncode])[-1]}")
        return done.stdout.strip()

    try:
        with open(image, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        call("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0", image)
        call("mount", "-o", "loop", image, where)  # the device goes with the last mount
        try:
            os.unlink(image)  # the device holds it, and a test that is killed leaves nothing
            device = call("findmnt", "-n", "-o", "SOURCE", where)
            # Past this machine's page cache, so that what is cold is cold. Not every file system below can.
            with contextlib.suppress(OSError):
                call("losetup", "--direct-io=on", device)
            call("blockdev", "--setra", str(read_ahead // 512), device)
            yield where
        finally:
            subprocess.run(["umount", "--lazy", where], capture_output=True)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(image)


def cold(folder):
    """What is in the folder's files is on the disk, and no longer in the page cache."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.isfile(path) and not os.path.islink(path):
            file = os.open(path, os.O_RDONLY)
            try:
                os.fsync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)


def words(first, nr):
    """A prompt of the model's words."""
    return "".join(f" w{number}" for number in range(first, first + nr))


class Llama:
    """Runs programs of the folder. `work` is a folder of the caller; inside it is INSIDE."""

    def __init__(self, work, data=None, threads=1):
        self.work, self.threads = os.path.abspath(work), threads
        self.binds = [self.work, INSIDE] + ([os.path.abspath(data), DATA] if data else [])

    def path(self, name):
        return os.path.join(self.work, name)

    def command(self, given):
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", MOUNTS, FOLDER, *self.binds, "--", *given]

    @staticmethod
    def environment(env=None):
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8", **(env or {})}

    def run(self, *given, env=None, limit=None, timeout=300, stdin=None):
        """A program to its end. `limit`: in a memory cgroup of so many bytes; 0: in one without a limit."""
        group = None if limit is None else MemoryGroup(limit)
        try:
            with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
                begun = time.monotonic()
                process = subprocess.Popen(
                    self.command(given), env=self.environment(env), stdout=out, stderr=err,
                    stdin=stdin or subprocess.DEVNULL, preexec_fn=group.join if group else None)
                # It has replaced the shell that started it, so what it used is the process's own.
                status = used = None
                while status is None:
                    pid, ended, used = os.wait4(process.pid, os.WNOHANG)
                    if pid:
                        status = os.waitstatus_to_exitcode(ended)
                    elif time.monotonic() - begun > timeout:
                        process.kill()
                        timeout = float("inf")
                    else:
                        time.sleep(.01)
                process.returncode = status
                seconds = time.monotonic() - begun
                texts = []
                for file in (out, err):
                    file.seek(0)
                    texts.append(file.read().decode(errors="replace"))
            if status == 125:
                raise OSError(f"the folder cannot be entered: {texts[1].strip()}")
            return Result(status, *texts, seconds, used.ru_maxrss << 10, group.peak() if group else None)
        finally:
            if group:
                group.close()

    def whole(self, is_whole, *given, cold_first=False, **more):
        """As run, for programs that log by a thread: its last messages are lost if the program ends before it has
        written them. Stock does so too, on a busy machine in one of five runs. So it is run again."""
        for tries in range(1, TRIES + 1):
            if cold_first:
                cold(self.work)
            result = self.run(*given, **more)
            result.tries = tries
            if result.status or is_whole(result):
                break
        return result

    def make_model(self, name, *given):
        """tests/engines/moe_gguf.py's file; what it says of it."""
        with open(os.path.join(HERE, "moe_gguf.py"), "rb") as script:
            made = self.run("python3", "-B", "-", f"{INSIDE}/{name}", *map(str, given), stdin=script)
        if made.status:
            raise RuntimeError(f"moe_gguf.py: {made.said()}")
        return json.loads(made.out.splitlines()[-1])

    def backend(self, memory=None, policy=None, **more):
        """The environment that loads the backend. What it needs lies beside it, in the work folder."""
        folder = self.path("lib")
        if not os.path.isdir(folder):
            copy_backend(folder)
        env = {"GGML_BACKEND_PATH": f"{INSIDE}/lib/{BACKEND}", "NEOTIER_EXPERTS_STATS": f"{INSIDE}/stats.json"}
        if memory is not None:
            env["NEOTIER_EXPERTS_MEMORY"] = str(memory)
        if policy is not None:
            env["NEOTIER_EXPERTS_POLICY"] = policy
        return {**env, **more}

    def completion(self, model, prompt, nr, *more, env=None, threads=None, context=None, warm_up=False, **how):
        """Greedy tokens after a prompt, the prompt among them."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path("stats.json"))
        result = self.whole(
            lambda result: "total time" in result.err, "llama-completion", "-m", f"{INSIDE}/{model}", "-no-cnv",
            "-p", prompt, "-n", str(nr), "--temp", "0", "--seed", "1", "--ignore-eos", "-c", str(context or 512),
            "-t", str(threads or self.threads), *([] if warm_up else ["--no-warmup"]), *more, env=env, **how)
        # llama.cpp ends its text with an empty line.
        result.out = result.out.rstrip("\n")
        result.prompt_per_s = self.speed(r"prompt eval time", result.err)
        result.tokens_per_s = self.speed(r"(?<!prompt )eval time", result.err)
        result.stats = self.stats()
        return result

    @staticmethod
    def speed(what, text):
        found = re.search(what + r" .*?([\d.]+) tokens per second", text)
        return float(found[1]) if found else None

    def stats(self):
        try:
            with open(self.path("stats.json"), encoding="ascii") as file:
                return json.load(file)
        except FileNotFoundError:
            return None

    def bench(self, model, prompt, nr, *more, repetitions=1, threads=None, **how):
        """llama-bench: tokens a second of a prompt, and after one."""
        result = self.run("llama-bench", "-m", f"{INSIDE}/{model}", "-t", str(threads or self.threads), "-p",
                          str(prompt), "-n", str(nr), "-r", str(repetitions), "-o", "json", *more, **how)
        if not result.status:
            for part in json.loads(result.out):
                if part["n_gen"]:
                    result.tokens_per_s = part["avg_ts"]
                else:
                    result.prompt_per_s = part["avg_ts"]
        return result

    def logits(self, model, text, *more, context=128, chunks=None, threads=None, **how):
        """llama-perplexity's file of all logits of a text, as bytes in the result's `out`."""
        with open(self.path("text"), "w", encoding="ascii") as file:
            file.write(text)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path("logits"))
        limited = ["--chunks", str(chunks)] if chunks else []
        result = self.run("llama-perplexity", "-m", f"{INSIDE}/{model}", "-t", str(threads or self.threads), "-f",
                          f"{INSIDE}/text", "-c", str(context), "-b", str(context), *limited, "--save-all-logits",
                          f"{INSIDE}/logits", *more, **how)
        if not result.status:
            with open(self.path("logits"), "rb") as file:
                result.out = file.read()
        return result

    def choices(self, model, nr, layers, first=0):
        """The experts that unmodified llama.cpp chooses for words: {layer: [[expert, best first]]}. Not of the last
        layer: there it computes only what a next token is wanted of. llama-debug prints a tensor's first and last
        three rows, so the words go in sixes. It too loses the end of what it says, so it is given more words."""
        def parsed(text):
            rows, layer = {}, None
            for line in text.splitlines():
                tensor = re.search(r"ffn_moe_topk-(\d+) = ", line)
                if tensor:
                    layer = int(tensor[1])
                elif " = " in line:
                    layer = None
                elif layer is not None and "]" in line and (numbers := re.findall(r"(\d+)\.0000", line)):
                    rows.setdefault(layer, []).append([int(number) for number in numbers])
            return {layer: of[:nr] for layer, of in rows.items() if layer < layers - 1}

        def is_whole(result):
            rows = parsed(result.out)
            return len(rows) == layers - 1 and all(len(of) == nr for of in rows.values())

        result = self.whole(is_whole, "llama-debug", "-m", f"{INSIDE}/{model}", "-p", words(first, nr + 60), "-ub", "6",
                            "-c", str(nr + 128), "-t", str(self.threads), "--no-warmup", "--verbose", "--tensor-filter",
                            "ffn_moe_topk")
        if result.status or not is_whole(result):
            raise RuntimeError(f"llama-debug: {result.said()}")
        return parsed(result.out)

    def counts(self, model, nr, first=0, chunk=64):
        """How often unmodified llama.cpp chooses each expert for words, a multiple of `chunk`: {layer: [count]}."""
        with open(self.path("text"), "w", encoding="ascii") as file:
            file.write(words(first, nr))
        result = self.run("llama-imatrix", "-m", f"{INSIDE}/{model}", "-f", f"{INSIDE}/text", "-c", str(chunk),
                          "-b", str(chunk), "-t", str(self.threads), "-o", f"{INSIDE}/imatrix.gguf")
        if result.status:
            raise RuntimeError(f"llama-imatrix: {result.said()}")
        with open(self.path("read.py"), "w", encoding="ascii") as file:
            file.write(READ_COUNTS)
        result = self.run("python3", "-B", f"{INSIDE}/read.py", f"{INSIDE}/imatrix.gguf")
        if result.status:
            raise RuntimeError(f"imatrix.gguf: {result.said()}")
        return {int(layer): of for layer, of in json.loads(result.out).items()}

    @contextlib.contextmanager
    def server(self, model, *more, env=None, slots=2, context=1024, threads=None, timeout=60):
        """llama-server: yields what asks it. ask(prompt, nr) is its JSON answer."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            process = subprocess.Popen(self.command([
                "llama-server", "-m", f"{INSIDE}/{model}", "--host", "127.0.0.1", "--port", str(port),
                "-np", str(slots), "-c", str(context), "-t", str(threads or self.threads), "--no-warmup", *more]),
                env=self.environment(env), stdout=log, stderr=log, stdin=subprocess.DEVNULL)

            def ask(prompt, nr, path="completion"):
                body = json.dumps({"prompt": prompt, "n_predict": nr, "temperature": 0, "seed": 1, "ignore_eos": True,
                                   "cache_prompt": False, "return_tokens": True})
                request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", body.encode(),
                                                 {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=timeout) as answer:
                    return json.load(answer)

            try:
                begun = time.monotonic()
                while True:
                    try:
                        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                            break
                    except OSError:
                        if process.poll() is not None or time.monotonic() - begun > timeout:
                            log.seek(0)
                            last = log.read().strip().splitlines()[-6:]
                            raise RuntimeError("llama-server: " + " | ".join(last)) from None
                        time.sleep(.1)
                yield ask
            finally:
                process.terminate()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def copy_backend(folder):
    """The backend, and beside it what it needs and the folder's Debian has not."""
    os.makedirs(folder)
    library = os.path.join(LIBRARIES, "libneotier.so.1")
    for path in (os.path.join(LIBRARIES, BACKEND), library):
        shutil.copy(path, folder)
    needed = subprocess.run(["ldd", library], check=True, capture_output=True, text=True).stdout
    for line in needed.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if arrow and not glob.glob(f"{FOLDER}/usr/lib/*-linux-gnu/{name}"):
            shutil.copy(rest.split(" (")[0], os.path.join(folder, name))
