#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The ggml backend in Debian's own llama.cpp: the same text and the same logits as without it, whatever memory the
experts get. TAP. As root; parts that need the backend are skipped until it is built."""
import contextlib
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.append(os.path.join(ROOT, "tests", "python"))
import common  # noqa: E402
import llama  # noqa: E402
import tap  # noqa: E402

ROUTING = os.path.join(common.data_folder(), "gpt-oss-20b-routing")
MODES = ("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")  # of llama.cpp's --load-mode
TOKENS = 48
PROMPT = llama.words(1, 8)
TEXT = llama.words(3, 260)  # for logits: two chunks of 128
MARGIN = 16 << 20           # of the bound on memory, see there
LAYERS, USED = 8, 4
# The traced model: 576 ordinary dimensions become 1024, so a matrix of an expert is 17 pages.
TRACED = ("--layers", LAYERS, "--embd", 576, "--ff", 64)
IN_PAGES = 6 * 4096         # what the matrices of an expert may take more where they begin and end within a page


def own_lines(result):
    """What the backend itself has said, whether llama.cpp's log has put something before it or not."""
    own = re.compile(r"([\d.]+ [A-Z] )?(lib)?(ggml-)?neotier: ", re.IGNORECASE)
    return [line for line in result.err.splitlines() if own.match(line)]


class Shared:
    """What all tests use, made when it is first asked for."""
    closing = contextlib.ExitStack()
    made = {}
    reason = None

    @classmethod
    def of(cls, name, make):
        if name not in cls.made:
            cls.made[name] = make()
        return cls.made[name]

    @classmethod
    def llama(cls):
        def make():
            folder = cls.closing.enter_context(tempfile.TemporaryDirectory(dir=os.environ.get("NEOTIER_TEST_DIR")))
            try:
                work = cls.closing.enter_context(llama.disk(folder, 768 << 20))
            except OSError as error:
                # Only the bound on memory is the wider for it.
                print(f"# no loop device, so the read-ahead is this disk's: {error}", flush=True)
                work = folder
            return llama.Llama(work, data=ROUTING if os.path.isdir(ROUTING) else None)
        return cls.of("llama", make)

    @classmethod
    def model(cls, kind):
        """(name, what it is)"""
        given = ("--type", kind)
        if kind == "traced":
            given = ("--router", "trace", "--routes", llama.DATA, "--sequence", 0, "--sequence", 2,
                     "--routes-out", f"{llama.INSIDE}/routes", *TRACED)
        name = f"{kind}.gguf"
        return name, cls.of(name, lambda: cls.llama().make_model(name, *given))

    @classmethod
    def stock(cls, kind, *more):
        """llama.cpp's own greedy text."""
        name, _ = cls.model(kind)

        def make():
            result = cls.llama().completion(name, PROMPT, TOKENS, *more)
            if result.status:
                raise RuntimeError(result.said())
            return result.out
        return cls.of(("stock", kind, *more), make)


class WithLlama(unittest.TestCase):
    backend_wanted = True

    def setUp(self):
        if Shared.reason or (self.backend_wanted and llama.no_backend()):
            self.skipTest(Shared.reason or llama.no_backend())
        self.llama = Shared.llama()

    def traced(self):
        if not os.path.isdir(ROUTING):
            self.skipTest("the shared routing of gpt-oss-20b is not there")
        return Shared.model("traced")

    def routes(self):
        """[word][layer] = [expert]"""
        with open(self.llama.path("routes/routes.u8"), "rb") as file:
            raw = file.read()
        layer = [list(raw[at:at + USED]) for at in range(0, len(raw), USED)]
        return [layer[at:at + LAYERS] for at in range(0, len(layer), LAYERS)]

    def fine(self, result, text=None):
        self.assertEqual(result.status, 0, result.said())
        if text is not None:
            self.assertEqual(result.out, text, result.said())
        return result

    def group(self):
        reason = llama.MemoryGroup.why_not()
        if reason:
            self.skipTest(reason)


class Models(WithLlama):
    """That the tests' own models are what the others take them for."""
    backend_wanted = False

    def test_words_in_order(self):
        """a model with a recorded router says its words in their order, over the end of a sequence too"""
        name, made = self.traced()
        result = self.fine(self.llama.completion(name, llama.words(490, 2), 64))
        self.assertEqual(result.out, llama.words(490, 66))
        with open(os.path.join(ROUTING, "index.csv"), encoding="ascii") as file:
            first = int(next(csv.DictReader(file))["n_tokens"])
        self.assertLess(first, 490 + 66)
        self.assertLess(490 + 66, made["words"])

    def test_choices(self):
        """its experts in unmodified llama.cpp are the recorded ones, in their order; in the last layer as many"""
        name, _ = self.traced()
        routes = self.routes()
        chosen = self.llama.choices(name, 90, LAYERS, first=470)
        for layer in range(LAYERS - 1):
            self.assertEqual(chosen[layer], [of[layer] for of in routes[470:560]], f"layer {layer}")
        counts = self.llama.counts(name, 128, first=470)
        for layer in range(LAYERS):
            expected = [sum(expert in of[layer] for of in routes[470:598]) for expert in range(32)]
            self.assertEqual(counts[layer], expected, f"layer {layer}")

    def test_as_recorded(self):
        """the routing that it wrote for the replay is the shared one's beginning, of its layers"""
        self.traced()
        with open(os.path.join(ROUTING, "index.csv"), encoding="ascii") as file:
            index = [(int(row["offset_tokens"]), int(row["n_tokens"])) for row in csv.DictReader(file)]
        with open(os.path.join(ROUTING, "routes.u8"), "rb") as file:
            raw = file.read()
        nr = 24 * USED
        recorded = [word for offset, tokens in (index[0], index[2]) for word in range(offset, offset + tokens)]
        expected = [[list(raw[word * nr + layer * USED:word * nr + (layer + 1) * USED]) for layer in range(LAYERS)]
                    for word in recorded]
        self.assertEqual(self.routes(), expected)

    def test_types(self):
        """models of each type give a text of many words, the same in every load mode; the same seed, the same file"""
        for kind in ("q8_0", "q4_0", "q4_K"):
            name, _ = Shared.model(kind)
            text = Shared.stock(kind)
            self.assertGreater(len(set(text.split())), TOKENS // 2, text)
            for mode in MODES:
                self.fine(self.llama.completion(name, PROMPT, TOKENS, "-lm", mode), text)
        self.llama.make_model("again.gguf")
        with open(self.llama.path("again.gguf"), "rb") as again, open(self.llama.path("q8_0.gguf"), "rb") as first:
            self.assertEqual(again.read(), first.read())
        os.unlink(self.llama.path("again.gguf"))


class Same(WithLlama):
    """(a), (b), (f): nothing that the backend does changes what llama.cpp says."""

    def same(self, kind, *more):
        name, made = Shared.model(kind)
        text = Shared.stock(kind, *more)
        logits = self.fine(self.llama.logits(name, TEXT, *more)).out
        for share in (None, 1, 2, 4):
            memory = None if share is None else (made["experts_bytes"] + 256 * IN_PAGES) // share
            env, where = self.llama.backend(memory), f"with {memory or 'all'} bytes"
            if "-nr" in more:
                env["NEOTIER_EXPERTS_REPACK"] = "0"
            result = self.fine(self.llama.completion(name, PROMPT, TOKENS, *more, env=env), text)
            self.assertIsNotNone(result.stats, f"the backend computed nothing {where}: no stats")
            self.assertGreater(result.stats["uses"], 0, where)
            if share and share > 1:
                self.assertLess(result.stats["resident_peak_bytes"], made["experts_bytes"], where)
                self.assertGreater(result.stats["loads"], 0, where)
            self.assertTrue(self.fine(self.llama.logits(name, TEXT, *more, env=env)).out == logits, f"other logits {where}")

    def test_q8_0(self):
        """Q8_0: text and logits are stock's bit for bit with all, half and a quarter of the experts in memory"""
        self.same("q8_0")

    def test_q4_0(self):
        """Q4_0: the same, where nothing is repacked (repacking rounds in another way)"""
        self.same("q4_0", "-nr")

    def test_q4_k(self):
        """Q4_K: the same"""
        self.same("q4_K", "-nr")

    def test_repacked(self):
        """where all experts fit they are repacked as llama.cpp repacks them: the logits are stock's, also without -nr"""
        for kind in ("q4_0", "q4_K"):
            # Whole pages of each matrix: others are left as they are.
            name = f"{kind}-pages.gguf"
            Shared.of(name, lambda name=name, kind=kind: self.llama.make_model(
                name, "--type", kind, "--layers", 4, "--experts", 16, "--embd", 512, "--ff", 768))
            logits, seen = self.fine(self.llama.logits(name, TEXT)).out, []
            plain = self.fine(self.llama.logits(name, TEXT, "-nr")).out
            for env in (self.llama.backend(), self.llama.backend(NEOTIER_EXPERTS_REPACK="0")):
                seen.append(self.fine(self.llama.logits(name, TEXT, env=env)).out)
            self.assertTrue(seen[0] == logits, f"{kind}: repacked")
            self.assertFalse(seen[1] == logits, f"{kind}: told not to repack")
            self.assertFalse(plain == logits, f"{kind}: repacking is seen in the logits")

    def test_load_modes(self):
        """each load mode gives stock's text, or is refused in one line"""
        name, made = Shared.model("q8_0")
        text, refused = Shared.stock("q8_0"), []
        for mode in MODES:
            for memory in (None, made["experts_bytes"] // 4):
                result = self.llama.completion(name, PROMPT, TOKENS, "-lm", mode, env=self.llama.backend(memory))
                if result.status == 0:
                    self.assertEqual(result.out, text, f"{mode}, {memory}: {result.said()}")
                else:
                    self.assertGreater(result.status, 0, f"{mode}: {result.said()}")
                    self.assertEqual(len(own_lines(result)), 1, f"{mode}: {result.err}")
                    refused.append(mode)
        print(f"# refused load modes: {', '.join(sorted(set(refused))) or 'none'}", flush=True)
        self.assertNotIn("auto", refused)

    def test_policies(self):
        """each policy gives stock's text; one that is none is refused in one line"""
        name, made = Shared.model("q8_0")
        for policy in ("lru", "lfu", "lfu-decay", "learned"):
            env = self.llama.backend(made["experts_bytes"] // 4, policy)
            result = self.fine(self.llama.completion(name, PROMPT, TOKENS, env=env), Shared.stock("q8_0"))
            self.assertEqual(result.stats["policy"], policy)
        result = self.llama.completion(name, PROMPT, TOKENS, env=self.llama.backend(made["experts_bytes"] // 4, "lur"))
        self.assertGreater(result.status, 0, result.said())
        self.assertEqual(len(own_lines(result)), 1, result.err)

    def test_threads(self):
        """two threads give stock's text"""
        name, made = Shared.model("q8_0")
        text = self.fine(self.llama.completion(name, PROMPT, TOKENS, threads=2)).out
        for memory in (None, made["experts_bytes"] // 4):
            self.fine(self.llama.completion(name, PROMPT, TOKENS, threads=2, env=self.llama.backend(memory)), text)

    def test_warm_up(self):
        """llama.cpp's empty run, in which all experts are used, changes nothing"""
        name, made = Shared.model("q8_0")
        env = self.llama.backend(made["experts_bytes"] // 4)
        self.fine(self.llama.completion(name, PROMPT, TOKENS, env=env, warm_up=True), Shared.stock("q8_0"))

    def test_prompts(self):
        """prompts in pieces of 1, 7 and 32 tokens give stock's text"""
        name, made = Shared.model("q8_0")
        for piece in ("1", "7", "32"):
            text = self.fine(self.llama.completion(name, llama.words(20, 70), 8, "-b", piece, "-ub", piece)).out
            env = self.llama.backend(made["experts_bytes"] // 4)
            self.fine(self.llama.completion(name, llama.words(20, 70), 8, "-b", piece, "-ub", piece, env=env), text)

    def test_server(self):
        """llama-server answers two requests at the same time as stock's answers each alone"""
        name, made = Shared.model("q8_0")
        prompts = (PROMPT, llama.words(40, 13))
        with self.llama.server(name, threads=2) as ask:
            alone = [ask(prompt, TOKENS)["tokens"] for prompt in prompts]
        self.assertEqual([len(of) for of in alone], [TOKENS, TOKENS])
        with self.llama.server(name, threads=2, env=self.llama.backend(made["experts_bytes"] // 4)) as ask:
            for _ in range(3):
                got = [None, None]

                def answer(place, got=got, ask=ask):
                    got[place] = ask(prompts[place], TOKENS)["tokens"]

                threads = [threading.Thread(target=answer, args=(place,)) for place in range(2)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                self.assertEqual(got, alone)


class Memory(WithLlama):
    """(c), (d): a budget is kept, or refused."""

    def test_too_small(self):
        """a budget that one operation's experts do not fit in is refused in one line"""
        name, made = Shared.model("q8_0")
        for memory in (made["expert_bytes"], "4K"):
            result = self.llama.completion(name, PROMPT, TOKENS, env=self.llama.backend(memory))
            self.assertGreater(result.status, 0, result.said())
            self.assertEqual(len(own_lines(result)), 1, result.err)
            self.assertIn("NEOTIER_EXPERTS_MEMORY", own_lines(result)[0])

    def test_no_size(self):
        """a budget that is no size is refused in one line"""
        name, _ = Shared.model("q8_0")
        for memory in ("much", "-1", "12X", ""):
            result = self.llama.completion(name, PROMPT, TOKENS, env=self.llama.backend(memory))
            self.assertGreater(result.status, 0, f"'{memory}': {result.said()}")
            self.assertEqual(len(own_lines(result)), 1, result.err)

    def without_experts(self, name, made):
        """Bytes that stock needs beside the experts: all of it read into memory of its own, less the experts."""
        stock = self.fine(self.llama.completion(name, PROMPT, TOKENS, "-lm", "dio", limit=0, cold_first=True))
        return stock.rss - made["experts_bytes"]

    def test_bound(self):
        """a cgroup of the budget, stock's memory without experts, and 16 MiB kills nothing, and the text is stock's"""
        self.group()
        name, made = Shared.model("q8_0")
        base = self.without_experts(name, made)
        for share in (2, 4):
            budget = made["experts_bytes"] // share
            bound = budget + base + MARGIN
            env = self.llama.backend(budget)
            result = self.fine(self.llama.completion(name, PROMPT, TOKENS, env=env, limit=0, cold_first=True),
                               Shared.stock("q8_0"))
            print(f"# budget {budget >> 20} MiB of {made['experts_bytes'] >> 20}: peak {result.peak >> 20} MiB of the "
                  f"cgroup, {result.rss >> 20} resident; bound {bound >> 20}, {base >> 20} of it stock's without experts",
                  flush=True)
            self.assertLessEqual(result.stats["resident_peak_bytes"], budget)
            self.assertLessEqual(result.stats["budget_bytes"], budget)
            # Both figures have pages of the mapped file, which give way; so what counts is that a limit is kept.
            self.fine(self.llama.completion(name, PROMPT, TOKENS, env=env, limit=bound, cold_first=True),
                      Shared.stock("q8_0"))


class Policy(WithLlama):
    """(e): what is found in memory is what the replay says."""

    def replay(self, policy, slots):
        text = subprocess.run([
            os.path.join(ROOT, "build", "bin", "neotier"), "moe", "replay", self.llama.path("routes"),
            "--layers", str(LAYERS), "--experts-per-layer", str(slots), "--policy", policy, "--predictor", "none",
            "--json", "-", "-q"],
            check=True, capture_output=True, text=True).stdout
        return json.loads(text)

    def test_as_replayed(self):
        """a recorded routing finds its experts in memory as often as neotier moe replay says, within .02"""
        name, made = self.traced()
        nr = made["words"]
        for policy in ("learned", "lru", "lfu-decay"):
            for slots in (8, 16):
                # Room for an expert's pages, and not for one expert more in a layer.
                memory = LAYERS * slots * (made["expert_bytes"] + (IN_PAGES if slots == 8 else IN_PAGES // 2))
                env = self.llama.backend(memory, policy, NEOTIER_EXPERTS_PREDICTOR="none")
                # One word of prompt: llama.cpp computes only what it needs of a prompt's last layer.
                result = self.fine(self.llama.completion(name, llama.words(0, 1), nr, env=env, context=nr + 64))
                stats, expected = result.stats, self.replay(policy, slots)
                rate = stats["hits"] / stats["uses"]
                print(f"# {policy}, {slots} of 32: hit rate {rate:.4f}, replay {expected['hit_rate']:.4f}", flush=True)
                self.assertEqual(stats["uses"], expected["uses"], "uses of experts, as the trace has them")
                self.assertAlmostEqual(rate, expected["hit_rate"], delta=.02)


class Broken(WithLlama):
    """(g): what does not fit together is said, and nothing crashes."""

    def goes_on(self, env):
        """One line, then the CPU's text or an end with a status."""
        name, _ = Shared.model("q8_0")
        result = self.llama.completion(name, PROMPT, TOKENS, env=env)
        self.assertGreaterEqual(result.status, 0, f"a crash: {result.said()}")
        if result.status == 0:
            self.assertEqual(result.out, Shared.stock("q8_0"))
            self.assertIsNone(result.stats, "refused, and yet it computed")
        return result

    def copy(self, folder, without=()):
        """Another copy of the backend's folder; its environment."""
        path = self.llama.path(folder)
        llama.copy_backend(path)
        for name in without:
            os.unlink(os.path.join(path, name))
        return dict(self.llama.backend(), GGML_BACKEND_PATH=f"{llama.INSIDE}/{folder}/{llama.BACKEND}")

    def test_no_library(self):
        """without libneotier beside it the backend is not loaded, in one line of llama.cpp's"""
        result = self.goes_on(self.copy("lib-without", ["libneotier.so.1"]))
        self.assertEqual(len([line for line in result.err.splitlines() if "libneotier.so.1" in line]), 1, result.err)

    def test_cut_model(self):
        """a model whose file ends within an expert is refused, and no text comes of it"""
        name, made = Shared.model("q8_0")
        with open(self.llama.path(name), "rb") as whole, open(self.llama.path("cut.gguf"), "wb") as cut:
            cut.write(whole.read(made["file_bytes"] - made["expert_bytes"]))
        result = self.llama.completion("cut.gguf", PROMPT, TOKENS, env=self.llama.backend(made["experts_bytes"] // 4))
        self.assertGreater(result.status, 0, result.said())
        self.assertEqual(result.out, "")


def main():
    Shared.reason = llama.why_not()
    if Shared.reason is None:
        llama.own_mounts()
    with Shared.closing:
        tap.main()


if __name__ == "__main__":
    main()
