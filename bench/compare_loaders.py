#!/usr/bin/env python3
"""Loading a model to a GPU: `quay load` beside what people use today, on one file, in one run.

    compare_loaders.py [--quay PROGRAM] [--to SPEC] [--mib N] [--runs N] [--folder DIRECTORY]

Measured with the page cache warm, medians of the runs, in turns:
  - quay load, its own time: allocation and copies;
  - safetensors' load_file(device="cuda");
  - torch.load(mmap=True), then .cuda() of every tensor;
  - a copy of page-locked memory by PyTorch: the limit of the link;
  - quay load in a process of its own, beyond one that only starts the driver: for 1 GiB of it;
  - quay load of 2,000 tensors of 1 KiB.
Every byte is checked: Quay's by digests of what it reads back from the device. A line for each
requirement says whether it holds; the status is 1 if one does not, 2 if bytes are wrong.
Needs PyTorch with CUDA and safetensors.
"""

import argparse
import hashlib
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
TENSORS = 16


class WrongBytes(Exception):
    """What arrived is not what was in the file."""


def write_safetensors(path, tensors):
    """`tensors`: a dict of bytes."""
    header, position = {}, 0
    for name, data in tensors.items():
        end = position + len(data)
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for data in tensors.values():
            file.write(data)


def digests_of(tensors):
    return {name: hashlib.sha256(data).hexdigest() for name, data in tensors.items()}


def random_tensors(size, count):
    return {f"t{i:04d}": os.urandom(size // count) for i in range(count)}


def warm(path):
    with open(path, "rb") as file:
        while file.read(16 * MIB):
            pass


def quay_load(options, path, digests=None):
    """The program's own seconds, and those of the whole process. With digests all is checked."""
    command = [options.quay, "load", path, "--to", options.to, "--json"]
    begin = time.perf_counter()
    output = subprocess.run(
        command + (["--sha256"] if digests else []), stdout=subprocess.PIPE, check=True
    ).stdout
    whole = time.perf_counter() - begin
    result = json.loads(output)
    if digests and {t["name"]: t["sha256"] for t in result["tensors"]} != digests:
        raise WrongBytes(f"quay load of {path}")
    return result["seconds"], whole


def timed(torch, load):
    """Seconds, and what was loaded."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    loaded = load()
    torch.cuda.synchronize()
    return time.perf_counter() - begin, loaded


def check_torch(loaded, digests, what):
    found = {
        name: hashlib.sha256(tensor.cpu().numpy().tobytes()).hexdigest()
        for name, tensor in loaded.items()
    }
    if found != digests:
        raise WrongBytes(what)


def pinned_seconds(torch, size):
    source = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(size, dtype=torch.uint8, device="cuda")
    target.copy_(source)
    return timed(torch, lambda: target.copy_(source, non_blocking=True))[0]


def compare(options, torch, load_file, report):
    size = options.mib * MIB
    tensors = random_tensors(size, TENSORS)
    digests = digests_of(tensors)
    ours = os.path.join(options.folder, "model.safetensors")
    theirs = os.path.join(options.folder, "model.pt")
    write_safetensors(ours, tensors)
    torch.save(
        {name: torch.frombuffer(bytearray(data), dtype=torch.uint8) for name, data in tensors.items()},
        theirs,
    )
    del tensors
    ways = {
        "safetensors load_file": lambda: load_file(ours, device="cuda"),
        "torch.load(mmap) and .cuda()": lambda: {
            name: tensor.cuda()
            for name, tensor in torch.load(theirs, mmap=True, weights_only=True).items()
        },
    }
    quay_load(options, ours, digests)
    for name, load in ways.items():
        check_torch(timed(torch, load)[1], digests, name)
    warm(ours)
    warm(theirs)
    times = {name: [] for name in ("quay load", *ways, "page-locked memory")}
    for _ in range(options.runs):
        times["quay load"].append(quay_load(options, ours)[0])
        for name, load in ways.items():
            times[name].append(timed(torch, load)[0])
        times["page-locked memory"].append(pinned_seconds(torch, size))
    quay = times["quay load"]
    for name, values in times.items():
        middle = statistics.median(values)
        print(
            f"{name:30} {size / middle * 1e-9:7.2f} GB/s (slowest {size / max(values) * 1e-9:.2f}, "
            f"fastest {size / min(values) * 1e-9:.2f}), quay's is {middle / statistics.median(quay):.2f} "
            "times as fast"
        )
    for name, wanted in zip(ways, (7, 5)):
        ratio = statistics.median(times[name]) / statistics.median(quay)
        report(f"at least {wanted} times {name}, in the median", ratio >= wanted)
        report(f"faster than {name} in every run", max(quay) < min(times[name]))
    for path in (ours, theirs):
        os.unlink(path)
    return size / statistics.median(times["page-locked memory"])


def compare_cold(options, limit, report):
    """A process of its own: its time from opening the file on, with the driver just started; and the
    whole of it beyond one that loads nearly nothing, which differs by the driver's start."""
    size = min(1024, options.mib) * MIB
    path, little = (os.path.join(options.folder, name) for name in ("cold", "little"))
    write_safetensors(path, random_tensors(size, TENSORS))
    write_safetensors(little, {"t": b"\x01" * 64})
    warm(path)
    own, whole, start = [], [], []
    for _ in range(options.runs):
        start.append(quay_load(options, little)[1])
        seconds, all_of_it = quay_load(options, path)
        own.append(seconds)
        whole.append(all_of_it)
    beyond = statistics.median(whole) - statistics.median(start)
    cold = statistics.median(own)
    print(
        f"a process of its own: {cold * 1e3:.1f} ms (slowest {max(own) * 1e3:.1f}) after the driver's "
        f"start, {cold * limit / size:.2f} times the page-locked {size / limit * 1e3:.1f} ms; the whole "
        f"process {beyond * 1e3:.1f} ms beyond one of {statistics.median(start) * 1e3:.1f} ms that loads "
        "64 bytes"
    )
    report("a cold process takes at most 1.5 times the page-locked transfer", cold * limit <= 1.5 * size)
    for each in (path, little):
        os.unlink(each)


def compare_small(options, report):
    path = os.path.join(options.folder, "small")
    tensors = random_tensors(2000 * 1024, 2000)
    write_safetensors(path, tensors)
    quay_load(options, path, digests_of(tensors))
    seconds = statistics.median(quay_load(options, path)[0] for _ in range(options.runs))
    print(f"2000 tensors of 1 KiB: {seconds * 1e3:.2f} ms")
    report("2000 tensors of 1 KiB take at most 5 ms", seconds <= 5e-3)
    os.unlink(path)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quay", default="quay", help="the program (default: the one in PATH)")
    parser.add_argument("--to", default="cuda:0", help="where quay loads to")
    parser.add_argument("--mib", type=int, default=2048, help="size of the model")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--folder", help="where the files are made, and deleted")
    options = parser.parse_args(arguments)
    try:
        import torch
        from safetensors.torch import load_file
    except ImportError as error:
        print(f"skipped: {error}")
        return 77
    if not torch.cuda.is_available():
        print("skipped: PyTorch finds no CUDA device")
        return 77
    failed = []

    def report(what, holds):
        print(f"{'holds' if holds else 'MISSED'}: {what}")
        if not holds:
            failed.append(what)

    print(f"{options.mib} MiB, medians of {options.runs} runs, PyTorch {torch.__version__}")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        options.folder = folder
        try:
            limit = compare(options, torch, load_file, report)
            compare_cold(options, limit, report)
            compare_small(options, report)
        except WrongBytes as error:
            print(f"wrong bytes: {error}")
            return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
