#!/usr/bin/env python3
"""Writes made-up logs of allocations in the format of the RAPIDS Memory Manager, for `quay replay`.

Usage: bench/make_traces.py DIRECTORY [NAME ...]

They have the shapes of programs other than those whose recorded logs are in tests/data/traces. The same
program writes the same logs.
"""
import argparse
import math
import os
import random

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
HEADER = "Thread,Time,Action,Pointer,Size,Stream"


class Log:
    """Events in the order in which they are written. A block is what `allocate` gives: its number."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines = [HEADER]
        self.count = 0  # of blocks so far
        self.live = {}  # size by block
        self.bytes = 0
        self.peak = 0

    def allocate(self, size, stream=0, thread=1):
        size = max(1, int(size))
        self.count += 1
        block = self.count << 8
        self.live[block] = size
        self.bytes += size
        self.peak = max(self.peak, self.bytes)
        self.lines.append(f"{thread},{len(self.lines)},allocate,{block:#x},{size},{stream:#x}")
        return block

    def free(self, block, stream=0, thread=1):
        size = self.live.pop(block)
        self.bytes -= size
        self.lines.append(f"{thread},{len(self.lines)},free,{block:#x},{size},{stream:#x}")

    def free_all(self, blocks, stream=0, thread=1):
        for block in blocks:
            self.free(block, stream, thread)

    @property
    def events(self):
        return len(self.lines) - 1

    def log_uniform(self, least, most):
        return int(math.exp(self.random.uniform(math.log(least), math.log(most))))


# Inference of a language model.

def _weights(log, layers, width, scale=1.0):
    """Half precision: four matrices of attention in one, two of the feed-forward net, norms."""
    blocks = [log.allocate(2 * 50257 * width * scale)]
    for _ in range(layers):
        blocks += [log.allocate(2 * size * scale) for size in
                   (3 * width * width, width * width, 4 * width * width, 4 * width * width,
                    3 * width, width, 4 * width, width, width, width)]
    return blocks


def _forward(log, tokens, layers, width, context):
    """Temporary blocks of a forward pass, freed as a caching framework frees them."""
    hidden = log.allocate(2 * tokens * width)
    for _ in range(layers):
        norm = log.allocate(2 * tokens * width)
        qkv = log.allocate(6 * tokens * width)
        log.free(norm)
        scores = log.allocate(2 * 16 * tokens * min(context, 512))
        out = log.allocate(2 * tokens * width)
        log.free_all([scores, qkv])
        up = log.allocate(8 * tokens * width)
        act = log.allocate(8 * tokens * width)
        log.free(up)
        after = log.allocate(2 * tokens * width)
        log.free_all([act, out, hidden])
        hidden = after
    logits = log.allocate(4 * min(tokens, 64) * 50257)
    log.free_all([hidden, logits])


def llm_paged(log):
    """Blocks of 16 tokens for each request and layer group; requests come and go."""
    layers, width, groups = 12, 1024, 4
    _weights(log, layers, width)
    page = 16 * 2 * 2 * width * layers // groups
    running = []
    while log.events < 120_000:
        while len(running) < 48 and (not running or log.random.random() < 0.3):
            prompt = log.log_uniform(8, 1800)
            request = {"length": prompt, "left": log.log_uniform(4, 600), "blocks": []}
            _forward(log, prompt, layers, width, prompt)
            for _ in range(groups * -(-prompt // 16)):
                request["blocks"].append(log.allocate(page))
            running.append(request)
        for _ in range(16):
            for request in running:
                request["length"] += 1
                request["left"] -= 1
                if request["length"] % 16 == 1:
                    request["blocks"] += [log.allocate(page) for _ in range(groups)]
        _forward(log, len(running), layers, width, 512)
        for request in [each for each in running if each["left"] <= 0]:
            log.free_all(request["blocks"])
            running.remove(request)


def llm_contiguous(log):
    """One contiguous cache a request and layer, which is made anew, longer by a half or by 64
    tokens, when it is full: the new one is there before the old one goes."""
    layers, width = 12, 1024
    _weights(log, layers, width)
    running = []
    while log.events < 100_000:
        if len(running) < 32 and log.random.random() < 0.4:
            prompt = log.log_uniform(8, 1500)
            _forward(log, prompt, layers, width, prompt)
            running.append({"room": prompt + 32, "length": prompt, "left": log.log_uniform(8, 800),
                            "blocks": [log.allocate(4 * (prompt + 32) * width)
                                       for _ in range(layers)]})
        for request in running:
            step = min(request["left"], 24)
            request["length"] += step
            request["left"] -= step
            if request["length"] > request["room"]:
                request["room"] = request["length"] + 64
                for i, old in enumerate(request["blocks"]):
                    request["blocks"][i] = log.allocate(4 * request["room"] * width)
                    log.free(old)
        if running:
            _forward(log, len(running), layers, width, 256)
        for request in [each for each in running if each["left"] <= 0]:
            log.free_all(request["blocks"])
            running.remove(request)


def llm_concat(log):
    """A cache that is concatenated at every token, as simple programs do it: each step's blocks are
    a little larger than the step's before."""
    layers, width = 24, 1024
    _weights(log, layers, width)
    while log.events < 120_000:
        length, batch = log.log_uniform(16, 600), log.random.choice((1, 1, 2, 4, 8))
        cache = [log.allocate(2 * batch * length * width) for _ in range(2 * layers)]
        for _ in range(log.log_uniform(16, 300)):
            length += 1
            hidden = log.allocate(2 * batch * width)
            for i, old in enumerate(cache):
                cache[i] = log.allocate(2 * batch * length * width)
                log.free(old)
                if i % 2 == 1:
                    scores = log.allocate(2 * batch * 16 * length)
                    log.free(scores)
            log.free(hidden)
        log.free_all(cache)


# Training.

def _train_step(log, layers, width, batch, length, gradients, heads=12):
    tokens = batch * length
    saved = []
    for _ in range(layers):
        kept = [log.allocate(2 * tokens * width), log.allocate(6 * tokens * width)]
        soft = log.allocate(2 * batch * heads * length * length)
        temporary = log.allocate(4 * batch * heads * length * length)
        log.free(temporary)
        kept += [soft, log.allocate(2 * tokens * width), log.allocate(8 * tokens * width),
                 log.allocate(8 * tokens * width), log.allocate(4 * tokens), log.allocate(4 * tokens)]
        saved.append(kept)
    logits = log.allocate(2 * tokens * 32000)
    loss = log.allocate(4 * tokens * 32000)
    log.free(logits)
    gradient = log.allocate(2 * tokens * width)
    log.free(loss)
    for layer, kept in enumerate(reversed(saved)):
        for block in reversed(kept):
            temporary = log.allocate(log.live[block])
            log.free(block)
            log.free(temporary)
        following = log.allocate(2 * tokens * width)
        log.free(gradient)
        gradient = following
        if gradients[layer] is None:
            gradients[layer] = [log.allocate(4 * size * width * width) for size in (3, 1, 4, 4)]
        else:
            again = [log.allocate(4 * size * width * width) for size in (3, 1, 4, 4)]
            log.free_all(again)
    log.free(gradient)


def _train(log, lengths, layers, width, accumulate, events):
    for _ in range(layers):
        for size in (3, 1, 4, 4):
            for _ in range(3):  # the weights and two moments
                log.allocate(4 * size * width * width)
    gradients = [None] * layers
    step = 0
    while log.events < events:
        batch = log.random.choice((2, 4, 4, 6))
        _train_step(log, layers, width, batch, lengths(), gradients)
        step += 1
        if step % accumulate == 0:
            for layer, each in enumerate(gradients):
                log.free_all(each)
                gradients[layer] = None


def train_accumulate(log):
    """Gradients accumulated over 4 batches, any sequence length."""
    _train(log, lambda: log.random.randint(40, 1000), 12, 768, 4, 60_000)


def train_bucketed(log):
    """Sequence lengths rounded up to one of eight."""
    _train(log, lambda: 128 * log.random.randint(1, 8), 12, 768, 4, 60_000)


def train_growing(log):
    """A curriculum: every batch a token longer than the one before."""
    state = {"length": 64}

    def longer():
        state["length"] += 1
        return state["length"]

    _train(log, longer, 8, 512, 1, 60_000)


def checkpointing(log):
    """Only each layer's input is kept; the rest is made again in the backward pass."""
    layers, width = 24, 1024
    for _ in range(layers):
        for size in (3, 1, 4, 4):
            log.allocate(2 * size * width * width)
    while log.events < 80_000:
        tokens = log.random.choice((1, 2, 4)) * log.random.randint(100, 2000)
        kept = []
        for _ in range(layers):
            kept.append(log.allocate(2 * tokens * width))
            log.free_all([log.allocate(n * tokens * width) for n in (6, 2, 8, 8)])
        for block in reversed(kept):
            inner = [log.allocate(n * tokens * width) for n in (6, 2, 8, 8)]
            gradient = log.allocate(2 * tokens * width)
            weights = [log.allocate(2 * n * width * width) for n in (3, 1, 4, 4)]
            log.free_all(reversed(inner))
            log.free_all([gradient, block])
            log.free_all(weights)


def diffusion(log):
    """A UNet over 30 steps an image, of changing size and batch; skip connections are kept."""
    for _ in range(60):
        log.allocate(2 * log.log_uniform(64 * KIB, 12 * MIB))
    while log.events < 100_000:
        batch = log.random.choice((1, 1, 2, 4, 8))
        height, width = (8 * log.random.randint(32, 96) for _ in range(2))
        latent = log.allocate(2 * batch * 4 * height * width // 64)
        for _ in range(log.random.choice((20, 30, 50))):
            skips, channels = [], (320, 640, 1280, 1280)
            h, w = height // 8, width // 8
            for level, channel in enumerate(channels):
                for _ in range(2):
                    size = 2 * batch * channel * h * w
                    a, b = log.allocate(size), log.allocate(size)
                    log.free(a)
                    if level < 3:
                        key = log.allocate(2 * batch * 8 * h * w * min(h * w, 77))
                        log.free(key)
                    skips.append(b)
                h, w = max(1, h // 2), max(1, w // 2)
            for channel in reversed(channels):
                h, w = h * 2, w * 2
                for _ in range(2):
                    skip = skips.pop()
                    joined = log.allocate(log.live[skip] + 2 * batch * channel * h * w // 4)
                    log.free(skip)
                    out = log.allocate(2 * batch * channel * h * w // 4)
                    log.free_all([joined, out])
            fresh = log.allocate(log.live[latent])
            log.free(latent)
            latent = fresh
        decoded = [log.allocate(2 * batch * c * height * width // f)
                   for c, f in ((512, 64), (512, 16), (256, 4), (128, 1), (3, 1))]
        log.free_all(decoded)
        log.free(latent)


def data_loader(log):
    """Images decoded by 6 threads into blocks of any size, collated on 4 streams with a prefetch of
    a few batches; the model frees them."""
    queue = []
    for _ in range(40):
        log.allocate(log.log_uniform(16 * KIB, 16 * MIB))
    while log.events < 150_000:
        stream = log.random.randrange(4)
        batch, images = log.random.choice((16, 32, 48)), []
        for _ in range(batch):
            thread = 2 + log.random.randrange(6)
            raw = log.allocate(log.log_uniform(20 * KIB, 800 * KIB), stream, thread)
            decoded = log.allocate(3 * log.random.randint(200, 1400) * log.random.randint(200, 1400),
                                   stream, thread)
            log.free(raw, stream, thread)
            images.append((decoded, thread))
        side = log.random.choice((160, 192, 224, 224, 256))
        collated = log.allocate(4 * 3 * batch * side * side, stream)
        for decoded, thread in images:
            log.free(decoded, stream, thread)
        queue.append((collated, stream))
        if len(queue) > log.random.choice((2, 4, 6)):
            block, owner = queue.pop(0)
            layers = [log.allocate(log.live[block] * c // 3 // f, owner)
                      for c, f in ((64, 4), (64, 16), (256, 16), (512, 64), (1024, 256))]
            log.free_all(reversed(layers), owner)
            log.free(block, owner)


def graph_network(log):
    """Sampled neighbourhoods: numbers of nodes and edges by a power law."""
    features = 256
    log.allocate(4 * 1_500_000 * features)
    for _ in range(12):
        log.allocate(4 * features * features)
    while log.events < 100_000:
        nodes = min(400_000, int(200 * log.random.paretovariate(0.7)))
        kept = []
        for _ in range(3):
            edges = min(4_000_000, int(nodes * (1 + log.random.paretovariate(1.2))))
            kept += [log.allocate(8 * edges), log.allocate(8 * edges), log.allocate(4 * nodes * features)]
            messages = log.allocate(4 * min(edges, 500_000) * 64)
            degree = log.allocate(4 * nodes)
            log.free_all([messages, degree])
            nodes = max(32, nodes // log.random.randint(2, 10))
        log.random.shuffle(kept)
        for block in kept:
            gradient = log.allocate(log.live[block])
            log.free_all([block, gradient])


# Made to be hard.

def _random_allocations(log, allocations, most, usage):
    blocks = []
    done = 0
    while done < allocations or blocks:
        size = 1 + log.random.randrange(most)
        if done < allocations and (not blocks or (log.random.random() < 0.73 and
                                                  log.bytes + size <= usage)):
            blocks.append(log.allocate(size))
            done += 1
        else:
            at = log.random.randrange(len(blocks))
            blocks[at], blocks[-1] = blocks[-1], blocks[at]
            log.free(blocks.pop())


def random_1(log):
    """RMM's random_allocations: sizes up to 1 MiB."""
    _random_allocations(log, 100_000, MIB, 16000 * MIB)


def random_64(log):
    _random_allocations(log, 50_000, 64 * MIB, 16000 * MIB)


def random_512(log):
    _random_allocations(log, 30_000, 512 * MIB, 16000 * MIB)


def random_4096(log):
    _random_allocations(log, 10_000, 4096 * MIB, 16000 * MIB)


def phases(log):
    """A model is loaded, used and freed, a larger one loaded, and a smaller one again."""
    for scale in (0.4, 1.0, 0.6, 1.6, 0.3, 2.0, 0.8, 2.2):
        width = int(1024 * math.sqrt(scale)) // 64 * 64
        blocks = _weights(log, int(16 * scale) + 4, width)
        for _ in range(60):
            _forward(log, log.random.randint(1, 1200), 8, width, 256)
        log.random.shuffle(blocks)
        log.free_all(blocks)
    state = [log.allocate(log.log_uniform(64 * KIB, 64 * MIB)) for _ in range(200)]
    log.free_all(state)


def growing(log):
    """40 arrays that grow a little at each step, each made anew before the old one goes."""
    arrays = [log.allocate(log.log_uniform(256 * KIB, 8 * MIB)) for _ in range(40)]
    while log.events < 60_000:
        for i, old in enumerate(arrays):
            arrays[i] = log.allocate(log.live[old] * 1.004 + 512)
            if log.live[arrays[i]] > 64 * MIB:
                log.free(arrays[i])
                arrays[i] = log.allocate(log.log_uniform(256 * KIB, 8 * MIB))
            log.free(old)


def growing_one(log):
    """One array, beside long-lived small ones that come with every step."""
    size, array = MIB, log.allocate(MIB)
    while log.events < 40_000:
        size = size * 1.0005 + 4096
        if size > GIB:
            size = MIB
        other = log.allocate(size)
        log.free(array)
        array = other
        if log.random.random() < 0.2:
            log.allocate(log.log_uniform(512, 64 * KIB))


def tiny_and_huge(log):
    """1 B to 4 KiB in great numbers, and now and then 100 to 400 MiB."""
    tiny, huge = [], []
    while log.events < 300_000:
        if len(tiny) < 20_000 or log.random.random() < 0.5:
            tiny.append(log.allocate(log.log_uniform(1, 4 * KIB)))
        else:
            at = log.random.randrange(len(tiny))
            tiny[at], tiny[-1] = tiny[-1], tiny[at]
            log.free(tiny.pop())
        if log.random.random() < 0.01:
            if len(huge) < 8 and log.random.random() < 0.6:
                huge.append(log.allocate(log.random.randint(100 * MIB, 400 * MIB)))
            elif huge:
                log.free(huge.pop(log.random.randrange(len(huge))))


def checkerboard(log):
    """Every other block is freed, then blocks of half as much again are asked for."""
    kept, size = [], MIB
    while log.events < 40_000:
        blocks = [log.allocate(size + log.random.randrange(64 * KIB)) for _ in range(400)]
        log.free_all(blocks[::2])
        kept.append(blocks[1::2])
        larger = [log.allocate(size * 1.5 + log.random.randrange(64 * KIB)) for _ in range(130)]
        log.free_all(larger[1::2])
        kept.append(larger[::2])
        while len(kept) > 6:
            log.free_all(kept.pop(log.random.randrange(len(kept))))
        size = log.random.choice((64 * KIB, 256 * KIB, MIB, 3 * MIB, 10 * MIB))


def checkerboard_small(log):
    """The same below 1 MiB and with more blocks."""
    kept = []
    while log.events < 200_000:
        size = log.log_uniform(200, 200 * KIB)
        blocks = [log.allocate(size + log.random.randrange(256)) for _ in range(3000)]
        log.free_all(blocks[::2])
        kept.append(blocks[1::2])
        kept.append([log.allocate(size * 2 + log.random.randrange(256)) for _ in range(1000)])
        while len(kept) > 8:
            log.free_all(kept.pop(log.random.randrange(len(kept))))


def _streams(log, count, most, live_blocks, events):
    """Sizes of a log-uniform distribution on several streams, lifetimes at random."""
    live = []
    while log.events < events:
        if len(live) < live_blocks * (0.7 + 0.6 * log.random.random()):
            stream = log.random.randrange(count)
            live.append((log.allocate(log.log_uniform(100, most), stream), stream))
        else:
            at = log.random.randrange(len(live))
            live[at], live[-1] = live[-1], live[at]
            log.free(*live.pop())


def streams_2(log):
    _streams(log, 2, 40_000_000, 300, 30_000)


def streams_4(log):
    _streams(log, 4, 100_000_000, 400, 40_000)


def streams_8_small(log):
    _streams(log, 8, 2_000_000, 3000, 100_000)


def dataframe(log):
    """Joins and group-bys: columns of some 10^3 to 10^7 rows, temporary ones of twice their size."""
    columns = []
    while log.events < 60_000:
        rows = log.log_uniform(1000, 6_000_000)
        table = [log.allocate(rows * log.random.choice((1, 4, 8, 8)))
                 for _ in range(log.random.randint(2, 12))]
        masks = [log.allocate(-(-rows // 8) + 64) for _ in table]
        temporary = [log.allocate(rows * 8 * f) for f in (1, 2, 0.5)]
        sizes = [log.allocate(log.random.randint(4, 1024)) for _ in range(8)]
        log.free_all(sizes + temporary)
        columns.append(table + masks)
        while log.bytes > 4 * GIB or len(columns) > 30:
            log.free_all(columns.pop(log.random.randrange(len(columns))))


KINDS = [llm_paged, llm_contiguous, llm_concat, train_accumulate, train_bucketed, train_growing,
         checkpointing, diffusion, data_loader, graph_network, random_1, random_64, random_512,
         random_4096, phases, growing, growing_one, tiny_and_huge, checkerboard, checkerboard_small,
         streams_2, streams_4, streams_8_small, dataframe]


def main():
    names = [kind.__name__ for kind in KINDS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", help="where they go, as NAME.csv")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(names)} (all)")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in names]
    if unknown:
        parser.error(f"no trace is called {unknown[0]}")
    os.makedirs(arguments.directory, exist_ok=True)
    for seed, kind in enumerate(KINDS, 1):
        if arguments.names and kind.__name__ not in arguments.names:
            continue
        log = Log(seed)
        kind(log)
        path = os.path.join(arguments.directory, f"{kind.__name__}.csv")
        with open(path, "w", encoding="ascii") as file:
            file.write("\n".join(log.lines) + "\n")
        print(f"{kind.__name__}: {log.events} events, {log.peak} bytes live at most")


if __name__ == "__main__":
    main()
