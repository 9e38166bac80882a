# SPDX-License-Identifier: Apache-2.0
"""What scripts/programs runs: each program's command line on a machine of a given size, its input, and what it needs.

A program is a dict:
  text     one line for --list
  shape    the shape of its use of memory, in a few words
  command  function of a Run: the words given to `neotier hil compare`
  options  options of `neotier hil compare`; {input} is the file that `input` wrote, {seed} the seed
  seconds  modelled s that its own length takes under `none` on the base machine, rounded: what --length scales by
  fixed    it has one length, whatever --length says
  largest  the largest scale that it allows (its input has to lie in the guest's memory)
  thp      the one setting of huge pages that it is for
  packages, files   Debian packages that are installed, files that scripts/bootstrap unpacks
  input    function (path, Run) that writes the file
"""
import bisect
import itertools
import os
import random
import subprocess
import typing

BASE_MIB = 64 + 128  # the machine whose sizes the programs below are written for
GUEST_PROGRAMS = "build/guest-programs"  # unpacked by scripts/bootstrap, not installed
INPUTS = "build/inputs"
# Programs here use a hundredth of a server's memory; caches shrink with it, though not as far.
MODEL = ["--model", "l2_kib=512", "--model", "llc_kib=2048"]


class Machine(typing.NamedTuple):
    """DRAM in MiB, MiB of CXL memory for each of DRAM, modelled s (None: the program's own length), huge pages, model's version."""
    dram: int = 64
    ratio: int = 2
    length: float | None = None
    thp: str = "never"
    model: int = 1

    def __str__(self):
        own = "" if self.length is None else f", {self.length:g} s"
        model = "" if self.model == 1 else f", model {self.model}"
        return f"{self.dram} MiB, 1:{self.ratio}{own}, THP {self.thp}{model}"


class Run(typing.NamedTuple):
    """A program on a machine with a seed."""
    program: dict
    machine: Machine
    seed: int

    @property
    def scale(self):
        return self.machine.dram * (1 + self.machine.ratio) / BASE_MIB

    def size(self, n):
        """What is `n` on the base machine: all data sets fill the same share of DRAM and CXL memory together."""
        return round(n * self.scale)

    def work(self, n):
        """What is `n` for the program's own length."""
        return n if self.machine.length is None else max(1, round(n * self.machine.length / self.program["seconds"]))


def zipf(n, exponent, count, seed):
    """`count` numbers of [0, n), Zipf-distributed, the popular ones scattered over the range."""
    rng = random.Random(seed)
    cumulative = list(itertools.accumulate(1 / (i + 1) ** exponent for i in range(n)))
    names = list(range(n))
    rng.shuffle(names)
    return [names[bisect.bisect_left(cumulative, rng.random() * cumulative[-1])] for _ in range(count)]


def sqlite_input(path, run):
    rows = run.size(200_000)
    with open(path, "w") as out:
        out.write(f"""create table t(k integer primary key, v blob);
with recursive c(i) as (select 1 union all select i + 1 from c where i < {rows}) insert into t select i, zeroblob(500) from c;
select 'loaded';
""")
        for key in zipf(rows, 0.99, run.work(60_000), run.seed):
            out.write(f"select length(v) from t where k = {key + 1} and substr(v, 400, 1) = 'x';\n")


def analytics_input(path, run):
    rows = run.size(400_000)
    with open(path, "w") as out:
        out.write(f"""create table part(k integer primary key, name text);
create table sale(k integer primary key, part int, day int, amount int, note blob);
with recursive c(i) as (select 0 union all select i + 1 from c where i < 999) insert into part select i, 'part ' || i from c;
with recursive c(i) as (select 1 union all select i + 1 from c where i < {rows})
  insert into sale select i, (i * {7919 + 30 * run.seed}) % 1000, i % 365, i % 97, zeroblob(300) from c;
select 'loaded';
""")
        queries = ("select day, sum(amount), count(*) from sale group by day order by 2 desc limit 3;\n",
                   "select part.name, avg(amount) from sale join part on part.k = sale.part where day < 90 group by part.name limit 3;\n")
        out.writelines(itertools.islice(itertools.cycle(queries), run.work(2)))


def documents(path, run):
    """Documents of 140 words of 50,000, the rare ones rare, in LIBSVM's format."""
    rng = random.Random(run.seed)
    with open(path, "w") as out:
        for i in range(run.size(54_000)):
            words = sorted({int(50_000 * rng.random() ** 3) + 1 for _ in range(140)})
            out.write(f"{'+1' if words[70] % 2 else '-1'} {' '.join(f'{word}:1' for word in words)}\n")


def prose(path, run):
    """Words by Zipf's law: text that compresses as prose does."""
    rng = random.Random(run.seed)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(20_000)]
    weights = list(itertools.accumulate(1 / (i + 1) for i in range(len(words))))
    left = run.size(24_000_000)
    with open(path, "w") as out:
        while left > 0:
            left -= out.write(" ".join(rng.choices(words, cum_weights=weights, k=5000)) + "\n")


def redis(options):
    """The server and its checker are one program that goes by its name."""
    def command(run):
        keys, hot = run.size(30_000), run.size(3_000)
        return ["ln -s $(which redis-check-rdb) /redis-server; "
                f"/redis-server --save '' --appendonly no{options} > /dev/null & "
                "until redis-cli ping 2> /dev/null; do sleep .02; done; "
                f"redis-cli eval 'for i = 0, {keys - 1} do redis.call(\"set\", string.format(\"key:%012d\", "
                f"(i * (7919 + 30 * {run.seed})) % {keys}), string.rep(\"v\", 4000)) end' 0; echo loaded; "
                f"redis-benchmark -t get -n {run.work(10_000)} -r {keys} -c 1 -P 16 -q > /dev/null & "
                f"redis-benchmark -t get -n {run.work(100_000)} -r {hot} -c 9 -P 16 -q > /dev/null; wait %2; redis-cli shutdown nosave"]
    return command


def memcached(run):
    """The client is awk and nc. A key's heat is its number's; keys are stored scattered, so that nine share a page. A part at a time,
    as what is asked for without reading fills the kernel's buffers; killed, as the server ends by its clock's next second."""
    keys = run.size(240_000)
    return ["mkdir -p /etc; echo 'root:x:0:0::/:/bin/sh' > /etc/passwd; "  # it asks who root is
            f"memcached -u root -l 127.0.0.1 -m {run.size(160)} -t 1 & server=$!; until nc 127.0.0.1 11211 < /dev/null 2> /dev/null; do sleep .02; done; "
            f"awk 'BEGIN {{ v = sprintf(\"%0400d\", 0); for (i = 0; i < {keys}; i++) "
            f"printf \"set k%07d 0 0 400 noreply\\r\\n%s\\r\\n\", (i * 7919) % {keys}, v; printf \"quit\\r\\n\" }}' | nc 127.0.0.1 11211; "
            f"echo loaded; for part in $(seq {max(1, run.work(100_000) // 5000)}); do awk -v seed={run.seed} -v part=$part "
            f"'BEGIN {{ srand(seed * 10000 + part); for (i = 0; i < 5000; i++) printf \"get k%07d\\r\\n\", "
            f"int(rand() * {keys} / (i % 10 ? 10 : 1)); printf \"quit\\r\\n\" }}' | nc 127.0.0.1 11211 > /dev/null; done; "
            "kill -KILL $server; wait"]


def shape(name, accesses, mib=144):
    return lambda run: ["build/bin/shapes", name, "--mib", str(run.size(mib)), "--accesses", str(run.work(accesses)),
                        "--seed", str(run.seed)]


def igraph(run):
    return ["/usr/bin/python3", "-c",
            f"import igraph, random; random.seed({run.seed}); "
            f"graph = igraph.Graph.Erdos_Renyi(n={run.size(130_000)}, m={run.size(1_300_000)}, directed=True); "
            f"print('ready', flush=True); print(max([max(graph.pagerank()) for _ in range({run.work(1)})]))"]


READY = ["--roi-after", "shapes: ready"]
PROGRAMS = {
    "gups": {
        "text": "ours: random updates, 90 % of them to a seventh of the table, which moves half-way",
        "shape": "a hot set that moves once",
        "seconds": 5.3,
        "options": [],
        "command": lambda run: ["build/bin/gups", "--table", str(run.size(150)), "--hot", str(run.size(20)), "--updates",
                                str(run.work(100_000_000)), "--jump-at", "0.5"],
    },
    "redis": {
        "text": "redis-server, 30,000 values of 4 KB stored in random order; nine clients read 3,000 of them, a tenth all (YCSB's hotspot)",
        "shape": "hash look-ups, values of a page",
        "packages": ["redis-tools"],
        "seconds": 1.26,
        "options": ["--with", "redis-check-rdb", "--roi-after", "loaded"],
        "command": redis(""),
    },
    "rocksdb-mixgraph": {
        "text": "RocksDB's db_bench: 110,000 rows of 1 KB written in random order, then Facebook's mix (mixgraph, all_dist of Cao et al.)",
        "shape": "skip list, skewed keys",
        "packages": ["rocksdb-tools"],
        "seconds": 1.95,
        "options": ["--roi-after", "filluniquerandom :", "--roi-until", "mixgraph     :"],
        "command": lambda run: [
            "db_bench", "-db", "/tmp/db", "-benchmarks", "filluniquerandom,mixgraph", "-num", str(run.size(110_000)), "-key_size", "48",
            "-value_size", "1000", "-write_buffer_size", str(run.size(1_000_000_000)), "-disable_wal", "-compression_type", "none",
            "-reads", str(run.work(80_000)), "-keyrange_num", "30", "-keyrange_dist_a", "14.18", "-keyrange_dist_b", "-2.917",
            "-keyrange_dist_c", "0.0164", "-keyrange_dist_d", "-0.08082", "-value_k", "0.2615", "-value_sigma", "25.45", "-iter_k",
            "2.517", "-iter_sigma", "14.236", "-mix_get_ratio", "0.83", "-mix_put_ratio", "0.14", "-mix_seek_ratio", "0.03",
            "-seed", str(run.seed)],
    },
    "rocksdb-cache": {
        "text": "RocksDB's cache_bench: its block cache of 115 MB in blocks of 4 KiB, keys skewed (-skew 30)",
        "shape": "a cache that is filled while it is read",
        "packages": ["rocksdb-tools"],
        "seconds": 2.84,
        "options": ["--roi-after", "Number of threads"],
        "command": lambda run: ["cache_bench", "-threads", "1", "-cache_size", str(run.size(115_000_000)), "-value_bytes", "4096",
                                "-skewed", "-skew", "30", "-ops_per_thread", str(run.work(800_000))],
    },
    "sqlite": {
        "text": "SQLite in memory, 200,000 rows of 500 B, point queries by Zipf's law (s = .99)",
        "shape": "B-tree look-ups, skewed, bound by instructions",
        "packages": ["sqlite3"],
        "input": sqlite_input,
        "seconds": 0.80,
        "options": ["--stdin", "{input}", "--roi-after", "loaded"],
        "command": lambda run: ["sqlite3", ":memory:"],
    },
    "sqlite-analytics": {
        "text": "SQLite in memory, 400,000 rows of 300 B: scans with group by and a join with a small table",
        "shape": "scans of everything, equal heat",
        "packages": ["sqlite3"],
        "input": analytics_input,
        "seconds": 0.5,
        "options": ["--stdin", "{input}", "--roi-after", "loaded"],
        "command": lambda run: ["sqlite3", ":memory:"],
    },
    "redis-huge": {
        "text": "redis as above, with huge pages allowed (--disable-thp no), on a kernel that gives them",
        "shape": "hash look-ups in huge pages",
        "packages": ["redis-tools"],
        "seconds": 1.26,
        "thp": "always",
        "options": ["--with", "redis-check-rdb", "--roi-after", "loaded"],
        "command": redis(" --disable-thp no"),
    },
    "memcached": {
        "text": "memcached, 240,000 values of 400 B; nine of ten reads are of a tenth of the keys, spread over all pages",
        "shape": "hash look-ups, heat spread over all pages",
        "packages": ["libevent-2.1-7", "libsasl2-2"],
        "files": [f"{GUEST_PROGRAMS}/usr/bin/memcached"],
        "seconds": 0.5,
        "options": ["--file", f"{GUEST_PROGRAMS}/usr/bin/memcached:/bin/memcached", "--roi-after", "loaded"],
        "command": memcached,
    },
    "igraph": {
        "text": "igraph's PageRank (PRPACK) from Python, 130,000 vertices, 1,300,000 edges at random",
        "shape": "growth, then sweeps with equal heat",
        "packages": ["python3-igraph"],
        "seconds": 2.5,
        "options": ["--rehearsal", "yes", "--roi-after", "ready"],
        "command": igraph,
    },
    "kyoto-btree": {
        "text": "Kyoto Cabinet's kcgrasstest: 3,300,000 records in a B+ tree in memory, read in random order",
        "shape": "B-tree look-ups, uniform",
        "packages": ["kyotocabinet-utils"],
        "fixed": True,
        "seconds": 5,
        "options": ["--env", "KCRNDSEED={seed}", "--roi-after", "getting records:", "--roi-until", "removing records:"],
        "command": lambda run: ["kcgrasstest", "order", "-rnd", str(run.size(3_300_000))],
    },
    "kyoto-hash": {
        "text": "Kyoto Cabinet's kcstashtest: 3,600,000 records in a hash table in memory, read in random order",
        "shape": "hash look-ups, uniform",
        "packages": ["kyotocabinet-utils"],
        "fixed": True,
        "seconds": 2,
        "options": ["--env", "KCRNDSEED={seed}", "--roi-after", "getting records:", "--roi-until", "removing records:"],
        "command": lambda run: ["kcstashtest", "order", "-rnd", "-bnum", str(run.size(3_000_000)), str(run.size(3_600_000))],
    },
    "liblinear": {
        "text": "LIBLINEAR: logistic regression (TRON) over 54,000 documents of 140 words; the training after its first step",
        "shape": "sweeps with equal heat, weights hot",
        "packages": ["liblinear-tools"],
        "input": documents,
        "fixed": True,
        "largest": 9,
        "seconds": 1,
        "options": ["--file", "{input}:/documents", "--roi-after", "iter  1 act"],
        "command": lambda run: ["liblinear-train", "-s", "0", "/documents", "/dev/null"],
    },
    "stockfish": {
        "text": "stockfish, its own benchmark: 48 positions, hash table of 100 MiB",
        "shape": "hash look-ups, uniform, bound by instructions",
        "packages": ["stockfish"],
        "seconds": 0.13,
        "options": ["--roi-after", "Position: 1/"],
        "command": lambda run: ["/usr/games/stockfish", "bench", str(run.size(100)), "1", str(run.work(800)), "default", "nodes"],
    },
    "xz": {
        "text": "xz: 24 MB of prose, a dictionary as large, hash chains (mode fast)",
        "shape": "growth, a window that moves",
        "packages": ["xz-utils"],
        "input": prose,
        "fixed": True,
        "largest": 27,
        "seconds": 2,
        "options": ["--stdin", "{input}"],
        "command": lambda run: ["xz", "-c", "-T1", f"--lzma2=preset=1,dict={run.size(24)}MiB"],
    },
    "pagerank": {
        "text": "ours: sweeps over the edges of a graph of 144 MiB, ranks hot",
        "shape": "streaming larger than DRAM, equal heat",
        "seconds": 0.40,
        "options": READY,
        "command": shape("pagerank", 60_000_000),
    },
    "jump": {
        "text": "ours: GUPS whose hot set, an eighth, is drawn anew every 5,000,000 updates",
        "shape": "a hot set that keeps jumping",
        "seconds": 0.5,
        "options": READY,
        "command": shape("jump", 20_000_000),
    },
    "burst": {
        "text": "ours: 200,000 updates of 4 MiB of pages, then of others",
        "shape": "bursts shorter than an epoch",
        "seconds": 0.74,
        "options": READY,
        "command": shape("burst", 20_000_000),
    },
    "grow": {
        "text": "ours: parts of 1 MiB are mapped and freed between a quarter of 144 MiB and all, the newest are hot",
        "shape": "growth and freeing",
        "seconds": 0.5,
        "options": READY,
        "command": shape("grow", 20_000_000),
    },
    "chase": {
        "text": "ours: chains of pointers, seven hops of eight through an eighth of the pages",
        "shape": "pointer chase",
        "seconds": 0.5,
        "options": READY,
        "command": shape("chase", 10_000_000),
    },
    "two": {
        "text": "stockfish with a hash table of 40 MiB, and, when it is under way, our chase over 100 MiB beside it",
        "shape": "two applications",
        "packages": ["stockfish"],
        "seconds": 0.5,
        "options": ["--file", "build/bin/shapes:/bin/shapes", "--with", "/usr/games/stockfish", "--roi-after", "Position: 1/"],
        "command": lambda run: [f"/usr/games/stockfish bench {run.size(40)} 1 {run.work(400)} default nodes & "
                                f"sleep .05; shapes chase --mib {run.size(100)} --accesses {run.work(5_000_000)} --seed {run.seed}; wait"],
    },
}


def own_machine(name):
    return Machine(thp=PROGRAMS[name].get("thp", "never"))


def input_file(name, run):
    """The program's input for the run, written once."""
    machine = run.machine
    own = "" if machine.length is None else f"-{machine.length:g}s"
    base = machine.dram * (1 + machine.ratio)
    path = f"{INPUTS}/{name}-{base}M{own}-{run.seed}"
    if not os.path.exists(path):
        os.makedirs(INPUTS, exist_ok=True)
        PROGRAMS[name]["input"](path + ".part", run)
        os.rename(path + ".part", path)
    return path


def missing_packages(names):
    """Packages that are not installed, and files that are not unpacked."""
    wanted = {p for name in names for p in PROGRAMS[name].get("packages", [])}
    missing = [p for p in wanted if subprocess.run(["dpkg-query", "-W", "-f=${db:Status-Status}", p], capture_output=True,
                                                   text=True).stdout != "installed"]
    files = {f for name in names for f in PROGRAMS[name].get("files", [])}
    return sorted(missing) + sorted(f for f in files if not os.path.exists(f))


def hil_command(name, machine, seed):
    """Options of `neotier hil` that make the machine for the program, whose input is written, and the program's words."""
    program = PROGRAMS[name]
    run = Run(program, machine, seed)
    source = input_file(name, run) if "input" in program else ""
    options = [option.replace("{input}", source).replace("{seed}", str(seed)) for option in program["options"]]
    if "--rehearsal" not in options:
        options += ["--rehearsal", "no"]
    return (["--seed", str(seed), "--dram", f"{machine.dram}M", "--cxl", f"{machine.dram * machine.ratio}M", "--thp", machine.thp,
             "--model-version", str(machine.model), *MODEL, *options], program["command"](run))
