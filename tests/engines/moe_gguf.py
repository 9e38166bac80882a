#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A GGUF file of a qwen3moe model with random weights, for tests of where experts lie. What it says has no meaning.

Its router is one of:
  free     random weights: what is chosen, and the text, depend on all that was computed before
  uniform  each token's experts are drawn at random: the worst case for any policy
  trace    each token's experts are those of a recorded routing (a folder with routes.u8 and index.csv)

With uniform and trace the model says its vocabulary's words in their order, from whatever word it starts at, so a run
of N tokens makes the choices of the trace's next N tokens. How: an embedding has, beside the ordinary dimensions, some
that no layer writes (their rows in what is added to the residual stream are zero). One for each layer and expert holds
the router's logit. The RMS norm scales all of them alike, so their order stays. Others hold a code of the token; the
output finds its successor by the code, and adds a smaller part from the ordinary dimensions, so that the logits depend
on what the experts computed.

It wants Python's gguf and numpy. The last line that it prints is JSON: sizes, and what the words are.
"""
import argparse
import csv
import json
import os
import sys
import zlib

import gguf
import numpy as np

TYPES = gguf.GGMLQuantizationType
# weights of a block, its bytes, the root mean square of random codes
BLOCKS = {"q8_0": (32, 34, 73.3), "q4_0": (32, 18, 4.18), "q4_K": (256, 144, 258.3)}
HEADS, KV_HEADS, HEAD = 4, 2, 64
TRACE_LAYERS, TRACE_USED = 24, 4  # of the recorded routing
CODE = 192   # dimensions of a token's code; two of some thousand random codes of it are a third alike at most
LOUD = 2.0   # its size in the residual stream, beside the ordinary dimensions' 1 at the start
SMALL = .05  # the ordinary part of a logit beside the successor's
FIRST = 259  # the token of the first word, after <unk>, <s>, </s> and bytes


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output")
    parser.add_argument("--type", choices=list(BLOCKS), default="q8_0")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--used", type=int, default=4, help="experts that a token uses in a layer")
    parser.add_argument("--embd", type=int, default=256, help="ordinary dimensions; a router by token adds its own")
    parser.add_argument("--ff", type=int, default=256, help="rows of an expert's gate and up")
    parser.add_argument("--router", choices=["free", "uniform", "trace"], default="free")
    parser.add_argument("--routes", metavar="FOLDER", help="of --router trace")
    parser.add_argument("--sequence", type=int, action="append", metavar="N",
                        help="a place in the routing's index; may be repeated, they follow one another. Default: 0")
    parser.add_argument("--words", type=int, help="words of the vocabulary. Default: the sequences' tokens, else 512")
    parser.add_argument("--routes-out", metavar="FOLDER", help="the words' choices as a recorded routing")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    block = BLOCKS[given.type][0]
    if given.ff % block or given.embd % 32 or min(given.layers, given.ff, given.embd) < 1:
        parser.error(f"--ff is a multiple of {block}, --embd of 32")
    if not 0 < given.used <= given.experts <= 256:
        parser.error("--used is at most --experts, and that at most 256")
    if given.router == "trace":
        if not given.routes:
            parser.error("--router trace takes --routes")
        if given.used != TRACE_USED or given.layers > TRACE_LAYERS:
            parser.error(f"the routing has {TRACE_USED} experts used in each of {TRACE_LAYERS} layers")
    elif given.router == "free" and given.routes_out:
        parser.error("what a free router chooses is not known before")
    return given


def routes_of(given, rng):
    """[word, layer, used]: the experts that each word's token chooses, best first; None for a free router."""
    if given.router == "free":
        return None
    if given.router == "uniform":
        shape = (given.words or 512, given.layers, given.experts)
        return np.argsort(rng.random(shape), axis=-1)[..., :given.used].astype(np.uint8)
    all_of_it = np.fromfile(os.path.join(given.routes, "routes.u8"), np.uint8).reshape(-1, TRACE_LAYERS, TRACE_USED)
    with open(os.path.join(given.routes, "index.csv"), encoding="ascii") as file:
        index = [(int(row["offset_tokens"]), int(row["n_tokens"])) for row in csv.DictReader(file)]
    parts = []
    for sequence in given.sequence or [0]:
        if not 0 <= sequence < len(index):
            sys.exit(f"moe_gguf: no sequence {sequence}; the index has {len(index)}")
        first, nr = index[sequence]
        parts.append(all_of_it[first:first + nr, :given.layers])
    routes = np.concatenate(parts)[:given.words]
    if routes.max() >= given.experts:
        sys.exit(f"moe_gguf: the routing has an expert {routes.max()}; --experts is {given.experts}")
    return routes


class Model:
    def __init__(self, given):
        self.given = given
        self.block, self.block_bytes, self.rms = BLOCKS[given.type]
        self.routes = routes_of(given, self.rng("routes"))
        self.words = given.words or 512 if self.routes is None else len(self.routes)
        self.place()
        self.tensors = []  # (name, shape, bytes as stored or None for F32, what makes it)

    def rng(self, name):
        """Each tensor has numbers of its own, so that one more changes no other."""
        return np.random.default_rng([self.given.seed, zlib.crc32(name.encode())])

    def place(self):
        """Which dimension is what. They are mixed, so that no page of an expert is all zeros."""
        given, reserved = self.given, 0
        self.code_size = 0
        if self.routes is not None:
            reserved = given.layers * given.experts + CODE
        self.embd = -(-(given.embd + reserved) // self.block) * self.block
        order = self.rng("dimensions").permutation(self.embd) if reserved else np.arange(self.embd)
        # What rounding adds is ordinary.
        self.ordinary = np.sort(order[reserved:])
        if reserved:
            self.code_size = CODE
            self.code = order[:CODE]
            self.router = order[CODE:reserved].reshape(given.layers, given.experts)

    def quantised(self, name, *shape, gain=1.0, zero_rows=None):
        """Random codes. A row of inputs of size 1 gives outputs of size `gain`. Rows to be zero have no scale."""
        row = shape[-1] // self.block * self.block_bytes

        def make():
            rng = self.rng(name)
            raw = np.frombuffer(rng.bytes(int(np.prod(shape[:-1])) * row), np.uint8).copy()
            raw = raw.reshape(-1, self.block_bytes)
            scale = np.float16(gain / (self.rms * np.sqrt(shape[-1])))
            raw[:, :2] = np.frombuffer(scale.tobytes(), np.uint8)
            if self.given.type == "q8_0":  # a quantiser makes no -128
                raw[:, 2:][raw[:, 2:] == 128] = 129
            elif self.given.type == "q4_0":  # -8, which the others would not balance, becomes 0
                codes = raw[:, 2:]
                codes[codes & 15 == 0] |= 8
                codes[codes >> 4 == 0] |= 128
            elif self.given.type == "q4_K":  # the mean of what is taken off is that of what is there
                raw[:, 2:4] = np.frombuffer(np.float16(7.5 * float(scale)).tobytes(), np.uint8)
            raw = raw.reshape(*shape[:-1], row)
            if zero_rows is not None:
                raw[..., zero_rows, :] = 0
            return raw
        self.tensors.append((name, (*shape[:-1], row), TYPES[self.given.type.upper()], make))

    def floats(self, name, *shape, make=None):
        self.tensors.append((name, shape, TYPES.F32, lambda: np.ascontiguousarray(
            np.ones(shape) if make is None else make(self.rng(name)), np.float32)))

    def codes(self):
        """[token, code]: a sign for each dimension."""
        return self.rng("codes").choice(np.float32([-1, 1]), (FIRST + self.words, self.code_size))

    def embedding(self, rng):
        made = np.zeros((FIRST + self.words, self.embd), np.float32)
        made[:, self.ordinary] = rng.standard_normal((len(made), len(self.ordinary)))
        if self.routes is None:
            return made
        made[:, self.code] = LOUD * self.codes()
        # Bytes and <s> are no part of a trace; they choose as the first words do.
        routes = np.concatenate([self.routes[np.arange(FIRST) % self.words], self.routes])
        for layer in range(self.given.layers):
            for place in range(self.given.used):
                made[np.arange(len(made)), self.router[layer][routes[:, layer, place]]] = 2 - place / self.given.used
        return made

    def gate(self, layer, rng):
        if self.routes is None:
            return rng.standard_normal((self.given.experts, self.embd)) / np.sqrt(self.embd)
        made = np.zeros((self.given.experts, self.embd), np.float32)
        made[np.arange(self.given.experts), self.router[layer]] = 3
        return made

    def output(self, rng):
        nr = FIRST + self.words
        if self.routes is None:
            made = rng.standard_normal((nr, self.embd)) * 4 / np.sqrt(self.embd)
            made[:FIRST] = 0  # words only: no text that is not UTF-8
            return made
        made = np.zeros((nr, self.embd), np.float32)
        # Layers make the ordinary dimensions about 2.5 times as large as they begin.
        size = SMALL * LOUD / 2.5 / np.sqrt(len(self.ordinary))
        made[:, self.ordinary] = rng.standard_normal((nr, len(self.ordinary))) * size
        words = self.codes()[FIRST:]
        made[FIRST:, self.code] = np.roll(words, 1, axis=0) / self.code_size  # the word before it
        return made * 16

    def write(self):
        given = self.given
        embd, ff, experts = self.embd, given.ff, given.experts
        reserved = np.setdiff1d(np.arange(embd), self.ordinary)
        writer = gguf.GGUFWriter(given.output, "qwen3moe")
        writer.add_name("random-moe")
        writer.add_block_count(given.layers)
        writer.add_context_length(max(4096, self.words + 256))
        writer.add_embedding_length(embd)
        writer.add_feed_forward_length(ff)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_key_length(HEAD)
        writer.add_value_length(HEAD)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(10000.0)
        writer.add_expert_count(experts)
        writer.add_expert_used_count(given.used)
        writer.add_expert_feed_forward_length(ff)
        # "w1" is merged from left to right, so each word's beginning has to be a word too. So the numbers have no
        # leading zeros, and "w" alone takes the place of a byte that no text has.
        kind = gguf.TokenType
        tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
        tokens += [f"\u2581w{i}" for i in range(self.words)]
        kinds = [kind.UNKNOWN, kind.CONTROL, kind.CONTROL] + [kind.BYTE] * 256 + [kind.NORMAL] * self.words
        tokens[3 + 255], kinds[3 + 255] = "\u2581w", kind.NORMAL
        writer.add_vocab_size(len(tokens))
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        writer.add_token_scores([-float(i) for i in range(len(tokens))])
        writer.add_token_types(kinds)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_add_bos_token(False)
        writer.add_add_space_prefix(False)

        self.floats("token_embd.weight", len(tokens), embd, make=self.embedding)
        self.floats("output_norm.weight", embd)
        self.floats("output.weight", len(tokens), embd, make=self.output)
        for layer in range(given.layers):
            at = f"blk.{layer}."
            self.floats(at + "attn_norm.weight", embd)
            self.quantised(at + "attn_q.weight", HEADS * HEAD, embd)
            self.quantised(at + "attn_k.weight", KV_HEADS * HEAD, embd)
            self.quantised(at + "attn_v.weight", KV_HEADS * HEAD, embd)
            self.quantised(at + "attn_output.weight", embd, HEADS * HEAD, gain=.3, zero_rows=reserved)
            self.floats(at + "attn_q_norm.weight", HEAD)
            self.floats(at + "attn_k_norm.weight", HEAD)
            self.floats(at + "ffn_norm.weight", embd)
            self.floats(at + "ffn_gate_inp.weight", experts, embd,
                        make=lambda rng, layer=layer: self.gate(layer, rng))
            self.quantised(at + "ffn_gate_exps.weight", experts, ff, embd)
            self.quantised(at + "ffn_up_exps.weight", experts, ff, embd)
            self.quantised(at + "ffn_down_exps.weight", experts, embd, ff, zero_rows=reserved)

        sizes = {"experts": 0, "others": 0}
        for name, shape, stored, _ in self.tensors:
            bytes_of = int(np.prod(shape)) * (4 if stored == TYPES.F32 else 1)
            sizes["experts" if "_exps" in name else "others"] += bytes_of
            if stored == TYPES.F32:
                writer.add_tensor_info(name, shape, np.dtype(np.float32), bytes_of)
            else:
                writer.add_tensor_info(name, shape, np.dtype(np.uint8), bytes_of, stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for _, _, _, make in self.tensors:
            writer.write_tensor_data(make())
        writer.close()
        return sizes

    def write_routes(self, folder):
        os.makedirs(folder, exist_ok=True)
        self.routes.tofile(os.path.join(folder, "routes.u8"))
        with open(os.path.join(folder, "index.csv"), "w", encoding="ascii") as file:
            file.write("seq,offset_tokens,n_tokens,first_token_pos,dataset,category,repetition\n")
            file.write(f"0,0,{self.words},0,words,words,False\n")


def main():
    given = options()
    model = Model(given)
    sizes = model.write()
    if given.routes_out:
        model.write_routes(given.routes_out)
    print(json.dumps({
        "type": given.type, "layers": given.layers, "experts": given.experts, "used": given.used, "embd": model.embd,
        "ff": given.ff, "words": model.words, "router": given.router,
        "expert_bytes": sizes["experts"] // given.layers // given.experts, "experts_bytes": sizes["experts"],
        "other_bytes": sizes["others"], "file_bytes": os.path.getsize(given.output)}))


if __name__ == "__main__":
    main()
