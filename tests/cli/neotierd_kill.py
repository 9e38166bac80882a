#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two clients on one neotierd, one of them killed again and again: neotierd_kill.py BIN TIMES [SEED].

The clients put, get, pin and move objects they share and know what they must find (testing/stress_client.cc). Every
fourth victim dies in the middle of a request that it holds pins beside. Afterwards the pins are those of the client
that lives, everything can be replaced, and none is left when it has gone. Prints a line, exits 0 or 1.
"""
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

BIN, TIMES = os.path.abspath(sys.argv[1]), int(sys.argv[2])
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else int(os.environ.get("NEOTIER_TEST_SEED", "1"))
dice = random.Random(SEED)


def die(why):
    sys.exit(f"seed {SEED}: {why}")


def gauges(http):
    with urllib.request.urlopen(http, timeout=10) as reply:
        text = reply.read().decode()
    return {m[1]: float(m[2]) for m in re.finditer(r"^(neotier_\w+) (\S+)$", text, re.M)}


def settled(http, wanted):
    """The daemon hears of a death by the kernel: soon, not at once."""
    for _ in range(500):
        now = gauges(http)
        if all(now[name] == value for name, value in wanted.items()):
            return now
        time.sleep(0.01)
    die(f"wanted {wanted}, found { {name: now[name] for name in wanted} }")


def start(mode, seed):
    return subprocess.Popen([f"{BIN}/stress_client", socket, str(seed), mode], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)


def told(client, wanted):
    line = client.stdout.readline()
    if not re.match(wanted, line):
        die(f"client: {line!r}, exit {client.poll()}")
    return line


with tempfile.TemporaryDirectory(dir=os.environ.get("NEOTIER_TEST_DIR")) as folder:
    folder = os.path.abspath(folder)
    socket = f"{folder}/s"
    with open(f"{folder}/d.toml", "w", encoding="ascii") as f:
        f.write(f"""[[tier]]
name = "near"
kind = "dram"
size = "4M"
[[tier]]
name = "far"
kind = "dram"
size = "8M"
[[tier]]
kind = "ssd"
size = "64M"
file = "{folder}/ssd"
[engine]
hysteresis_ms = 0
probe_links = false
[socket]
path = "{socket}"
[metrics]
listen = "127.0.0.1:0"
""")
    daemon = subprocess.Popen([f"{BIN}/neotierd", "--config", f"{folder}/d.toml"], stderr=subprocess.PIPE, text=True)
    http = None
    for line in daemon.stderr:
        if m := re.search(r"http://\S+", line):
            http = m[0]
        if "ready on" in line:
            break
    else:
        die(f"neotierd did not start: {line!r}")
    living = start("run", 0)
    told(living, "ready")
    halves = 0
    for n in range(1, TIMES + 1):
        half = n % 4 == 0
        victim = start("half" if half else "run", n)
        told(victim, "ready")
        if not half:
            time.sleep(dice.uniform(0, 0.06))
        halves += half
        victim.send_signal(signal.SIGKILL)
        if victim.wait() != -signal.SIGKILL:
            die(f"victim {n} ended by itself: {victim.stdout.read()!r}")
        if living.poll() is not None:
            die(f"the living client ended: {living.stdout.read()!r}")
    living.stdin.write("pause\n")
    living.stdin.flush()
    pins, operations = map(int, re.findall(r"\d+", told(living, "pins")))
    settled(http, {"neotier_pins": pins, "neotier_sessions": 1, "neotier_daemon_clients": 1})
    living.stdin.write("sweep\n")
    living.stdin.flush()
    told(living, "pins 0")
    living.stdin.write("end\n")
    living.stdin.flush()
    if living.wait() != 0:
        die("the living client saw wrong data")
    last = settled(http, {"neotier_pins": 0, "neotier_sessions": 0, "neotier_daemon_clients": 0,
                          "neotier_daemon_in_flight_bytes": 0})
    daemon.send_signal(signal.SIGTERM)
    if daemon.wait(30) != 0:
        die(f"neotierd ended with {daemon.returncode}")
    if os.path.exists(socket):
        die("the socket file is still there")
    print(f"seed {SEED}: {TIMES} clients killed, {halves} of them in the middle of a request; {operations} checked operations of "
          f"the one that lived; pins then {pins}, its own; after it 0; {last['neotier_session_releases_total']:.0f} released by deaths")
