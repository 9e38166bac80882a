#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""neotier top on a terminal of our own: neotier_top.py NEOTIER SOCKET SYSFS. What it draws is read back through a
terminal emulator (pyte); exits 0 or 1."""
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pyte

NEOTIER, SOCKET, SYSFS = sys.argv[1:4]
screen = pyte.Screen(80, 24)
stream = pyte.ByteStream(screen)
master, slave = pty.openpty()
before = termios.tcgetattr(slave)


def resize(columns, lines):
    screen.resize(lines, columns)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


resize(80, 24)
raw = b""
top = subprocess.Popen([NEOTIER, "top", "--socket", SOCKET, "--sysfs", SYSFS, "--interval", "0.2"], stdin=slave,
                       stdout=slave, stderr=subprocess.PIPE, start_new_session=True,
                       preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0),
                       env={**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"})


def shown():
    return "\n".join(screen.display)


def until(what, text, absent=False):
    """Reads until the text is on the screen, at most ten seconds."""
    global raw
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if select.select([master], [], [], 0.05)[0]:
            data = os.read(master, 65536)
            raw += data
            stream.feed(data)
        if (text in shown()) != absent:
            return
    sys.exit(f"{what}: '{text}' {'still' if absent else 'not'} on the screen, exit {top.poll()}:\n{shown()}")


def press(keys):
    os.write(master, keys.encode())


until("start", "TIERS")
until("tiers", "dram")
until("kernel", "payback, quota 333 MiB/s")
until("clients", "neotier top")
until("keys", "q quit")
press("?")
until("help", "shorter, longer interval")
press("?")
until("help leaves", "TIERS")
press("p")
until("pause", "PAUSED")
press("p")
until("goes on", "PAUSED", absent=True)
press("-")
until("interval", "every 0.4 s")
press("+")
until("interval", "every 0.2 s")
press("t")
until("knobs", "> enabled")
press("\x1bOB" * 3)  # down
until("choose", "> quota_mb_per_s")
if os.geteuid() == 0:
    press("\n444\n")
    until("tuned", "quota_mb_per_s is 444 now")
    with open(f"{SYSFS}/quota_mb_per_s", encoding="ascii") as f:
        assert f.read() == "444\n"
    press("\n99999999999\n")
    until("out of range", "expected a number from 0 to")
    press("\n333\n")
    until("tuned back", "quota_mb_per_s is 333 now")
else:
    press("\n")
    until("only root", "only root changes knobs")
press("t")
until("back", "CLIENTS")
resize(120, 40)
os.killpg(top.pid, signal.SIGWINCH)
until("larger: the keys are on the new last line", "q quit")
for _ in range(100):
    until("redrawn", "TIERS")
    if "q quit" in screen.display[39]:
        break
else:
    sys.exit("after growing the last line is not the keys':\n" + shown())
resize(30, 6)
os.killpg(top.pid, signal.SIGWINCH)
until("tiny", "neotier top")
assert top.poll() is None, "a tiny terminal ends it"
resize(80, 24)
os.killpg(top.pid, signal.SIGWINCH)
until("again", "TIERS")
assert b"\x1b[3" in raw, "no colour on a terminal that has it"
press("q")
while True:
    if select.select([master], [], [], 0.2)[0]:
        raw += os.read(master, 65536)
    elif top.poll() is not None:
        break
assert top.returncode == 0, top.stderr.read()
assert raw.rstrip().endswith(b"\x1b[?1l\x1b>") or b"\x1b[?1049l" in raw, raw[-60:]
assert termios.tcgetattr(slave) == before, "the terminal's modes are not as they were"
print("drawn, tuned, resized, restored")
