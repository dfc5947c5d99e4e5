#!/usr/bin/env python3
"""Compares the pool layer with the C library's malloc, jemalloc and mimalloc.

Usage: bench/pool_compare.py BUILD_FOLDER OUT.json OUT.svg [--repetitions N]

Runs bench_pool (UMF's and RMM's shapes) with each allocator that is there, loaded by LD_PRELOAD, and
replays the recorded traces on pools of several settings and on the system alone. All runs are made in
rounds, one of each a round; figures are medians over the rounds, ratios those of the same run. The
frontier of memory against time of a first pass is drawn as SVG.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys

import frontier

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PRELOADED = {"jemalloc": "libjemalloc.so.2", "mimalloc": "libmimalloc.so.2"}
TRACES = ("gpt2_train", "resnet_train", "two_stream")
SPECS = {
    "pool": "pool+cpu",
    "keep=tight": "pool:keep=tight+cpu",
    "system": "cpu",
}
SHAPES = (r"(exchange/(pool|malloc)/live:10000/.*threads:[124]$|exchange/.*random/live:10000/.*|"
          r"random/.*/allocations:10000/most_mib:(1|64|4096)$)")


def run(command, preload=None):
    environment = dict(os.environ)
    if preload:
        environment["LD_PRELOAD"] = preload
    return subprocess.run(command, env=environment, check=True, capture_output=True).stdout


def can_preload(library):
    done = subprocess.run(
        ["true"], env={**os.environ, "LD_PRELOAD": library}, capture_output=True, check=False
    )
    return done.returncode == 0 and not done.stderr


def find_heaps():
    heaps = {"glibc": None}
    for name, library in PRELOADED.items():
        if can_preload(library):
            heaps[name] = library
        else:
            print(f"{name} is left out: {library} is not there", file=sys.stderr)
    return heaps


def measure_shapes(build, heaps, into):
    """Nanoseconds of the processor's for a pair, by benchmark and allocator."""
    program = os.path.join(build, "bench", "bench_pool")
    for heap, library in {"quay": None, **heaps}.items():
        kind = "quay_" if heap == "quay" else "heap_"
        out = run(
            [program, f"--benchmark_filter=^{kind}{SHAPES}", "--benchmark_format=json",
             "--benchmark_min_time=0.1"],
            library,
        )
        for each in json.loads(out)["benchmarks"]:
            _, variant, *rest = each["name"].split("/")
            name = heap + ("_tight" if "tight" in variant else "")
            rmm = "per_operation" in each
            shape = ("rmm/" if rmm else "umf/") + "/".join(rest)
            time = 2e9 * each["per_operation"] if rmm else each["cpu_time"]
            into.setdefault(shape, {}).setdefault(name, []).append(time)


def measure_traces(build, into):
    program = os.path.join(build, "tools", "quay", "quay")
    for trace in TRACES:
        path = os.path.join(ROOT, "tests", "data", "traces", f"{trace}.csv.gz")
        for name, spec in SPECS.items():
            figures = json.loads(run([program, "replay", path, "--on", spec, "--json"]))
            into.setdefault(trace, {}).setdefault(name, []).append(figures)


def medians_of(runs):
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("build")
    parser.add_argument("json")
    parser.add_argument("svg")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    heaps, shapes, traces = find_heaps(), {}, {}
    for _ in range(options.repetitions):
        measure_shapes(options.build, heaps, shapes)
        measure_traces(options.build, traces)
    shapes = {shape: {name: statistics.median(times) for name, times in each.items()}
              for shape, each in shapes.items()}
    traces = {trace: {name: medians_of(runs) for name, runs in each.items()}
              for trace, each in traces.items()}
    result = {"machine": platform.platform(), "cores": os.cpu_count(), "load": os.getloadavg()[0],
              "repetitions": options.repetitions, "ns_per_pair": shapes, "traces": traces}
    with open(options.json, "w", encoding="ascii") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    frontier.draw(traces, options.svg, "ns_per_event", "ns", least=1)


if __name__ == "__main__":
    main()
