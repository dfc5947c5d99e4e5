#!/usr/bin/env python3
"""Replays recorded traces on a GPU: Quay's pool beside PyTorch's allocator and cuMemAllocAsync.

    pool_gpu_compare.py [--quay PROGRAM] [--traces FOLDER] [--rounds N] [--seconds N]
                        [--without WAY[,WAY]] OUT.json OUT.svg

The ways, each in a process of its own, in turns, round by round; figures are medians:
  pool, keep=tight         quay replay on pool+cuda:0 and pool:keep=tight+cuda:0
  torch, torch expandable  PyTorch's caching allocator as it is, and with expandable segments
  async, async keep        cuMemAllocAsync on the default pool as it is, and with a release threshold
                           without limit
A block that the trace frees has no work left when the next event comes, as in quay replay: nothing was
ever submitted, and of cuMemAllocAsync the stream is waited for after a free.

ratio: the most that was held over the most that was live. first - warm: the time of a first pass on a
fresh allocator less that of one more on the same one (for PyTorch and async keep the median of three),
which leaves out what the loop and the allocator's own work cost. driver: for PyTorch the same; for
Quay the larger one of it and of the time in the backend by the program's own clock; for cuMemAllocAsync,
where everything is the driver's, the time in the calls less what calls cost from Python (waiting after a
free counts where memory goes back then: not with keep). Calls of the driver are those that Quay's
program, or PyTorch's statistics, count.

For each trace a line says whether the pool's driver time is at most that of PyTorch's expandable segments
(the goal is half of it). Ends with status 3 where it is more; 77 where that could not be told, since
PyTorch or a CUDA device is missing or allocations failed; 2 after an error. No round begins after
--seconds, and what takes more than 20 seconds a round is measured once.
"""

import argparse
import ctypes
import gc
import glob
import json
import os
import statistics
import subprocess
import sys
import time
import traceback

import frontier
import trace_log
from pool_compare import medians_of

FLOOR, GOAL = 1.0, 0.5
MISSED, MISSING = 3, 77
WARM_PASSES = 3
SLOW = 20  # seconds in a round, after which a way is not measured again
QUAY = {"pool": "pool+cuda:0", "keep=tight": "pool:keep=tight+cuda:0"}
OTHERS = ("torch", "torch expandable", "async", "async keep")
TORCH_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # the old name and the new one


class Problem(Exception):
    """An error, told in one line."""


class Missing(Exception):
    """What this machine lacks, told in one line."""


# What is replayed on: `alloc(size, stream)` gives a block, or raises `failure`; `free(block, stream)`;
# `peak()` is the most held, in bytes, since `begin()`.


class Torch:
    warm_passes = WARM_PASSES

    def __init__(self, streams, expandable):
        try:
            import torch
        except ImportError as error:
            raise Missing(f"PyTorch is not there: {error}") from None
        if not torch.cuda.is_available():
            raise Missing("PyTorch finds no CUDA device")
        self.torch, self.expandable = torch, expandable
        self.failure = torch.cuda.OutOfMemoryError
        self.version = torch.__version__
        torch.cuda.synchronize()  # makes the context
        # A trace's stream 0 is PyTorch's own, as it was when the trace was recorded.
        self._objects = [torch.cuda.Stream() if stream else None for stream in streams]
        self._streams = [each.cuda_stream if each else torch.cuda.current_stream().cuda_stream
                         for each in self._objects]
        internal = getattr(torch, "_C", None)
        raw = getattr(internal, "_cuda_cudaCachingAllocator_raw_alloc", None)
        delete = getattr(internal, "_cuda_cudaCachingAllocator_raw_delete", None)
        handles = self._streams
        if raw and delete:
            # What the public functions call, without some microseconds of Python around it.
            self.alloc = lambda size, stream: raw(size, handles[stream])
            self.free = lambda block, stream: delete(block)
        else:
            public, device = torch.cuda.caching_allocator_alloc, torch.cuda.current_device()
            delete = torch.cuda.caching_allocator_delete
            self.alloc = lambda size, stream: public(size, device, handles[stream])
            self.free = lambda block, stream: delete(block)

    def begin(self):
        self.torch.cuda.reset_peak_memory_stats()

    def peak(self):
        segments = self.torch.cuda.memory_snapshot()
        if segments and any(each.get("is_expandable", False) for each in segments) != self.expandable:
            state = "does not use" if self.expandable else "uses"
            raise Problem(f"PyTorch {state} expandable segments, against its settings")
        return self.torch.cuda.memory_stats()["reserved_bytes.all.peak"]

    def figures(self, _in_calls):
        """The driver's calls, by PyTorch's own count, where it has one."""
        stats = self.torch.cuda.memory_stats()
        return {"driver_calls": stats.get("num_device_alloc", 0) + stats.get("num_device_free", 0)}


class Driver:
    """The driver's functions, by their names."""

    def __init__(self):
        name = os.environ.get("QUAY_CUDA_LIBRARY", "libcuda.so.1")
        try:
            self.library = ctypes.CDLL(name)
        except OSError as error:
            raise Missing(f"no CUDA driver: {error}") from None
        count = ctypes.c_int()
        status = self.library.cuInit(0) or self.library.cuDeviceGetCount(ctypes.byref(count))
        if status != 0 or count.value == 0:
            raise Missing(f"the CUDA driver has no device: {self.name_of(status)}")

    def name_of(self, status):
        text = ctypes.c_char_p()
        self.library.cuGetErrorName(status, ctypes.byref(text))
        return (text.value or b"error %d" % status).decode()

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise Problem(f"{name}: {self.name_of(status)}")

    def describe(self):
        text, version = ctypes.create_string_buffer(128), ctypes.c_int()
        self.call("cuDeviceGetName", text, 128, 0)
        self.call("cuDriverGetVersion", ctypes.byref(version))
        return text.value.decode(), f"{version.value // 1000}.{version.value % 1000 // 10}"


class Async:
    THRESHOLD, RESERVED_HIGH = 4, 6  # CUmemPool_attribute

    class failure(Exception):  # pylint: disable=invalid-name
        """An allocation failed."""

    version = None

    def __init__(self, streams, keep):
        self.driver, self.keep = Driver(), keep
        self.warm_passes = WARM_PASSES if keep else 1  # else it takes all memory anew, and its time
        context = ctypes.c_void_p()
        self.driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.driver.call("cuCtxSetCurrent", context)
        self.streams = [self._stream() for _ in streams]
        self.pool = ctypes.c_void_p()
        self.driver.call("cuDeviceGetDefaultMemPool", ctypes.byref(self.pool), 0)
        if keep:
            self._set(self.THRESHOLD, (1 << 64) - 1)
        library = self.driver.library
        self._alloc, self._free = library.cuMemAllocAsync, library.cuMemFreeAsync
        self._wait, self._empty = library.cuStreamSynchronize, library.cuDriverGetVersion
        self._pointer = ctypes.c_uint64()
        self._reference = ctypes.byref(self._pointer)
        self.spent = self.waited = 0.0

    def _stream(self):
        stream = ctypes.c_void_p()
        self.driver.call("cuStreamCreate", ctypes.byref(stream), 1)  # not with the legacy stream
        return stream

    def _set(self, attribute, value):
        number = ctypes.c_uint64(value)
        self.driver.call("cuMemPoolSetAttribute", self.pool, attribute, ctypes.byref(number))

    def alloc(self, size, stream):
        begin = time.perf_counter()
        status = self._alloc(self._reference, ctypes.c_size_t(size), self.streams[stream])
        self.spent += time.perf_counter() - begin
        if status != 0:
            raise self.failure
        return self._pointer.value

    def free(self, block, stream):
        stream = self.streams[stream]
        begin = time.perf_counter()
        status = self._free(ctypes.c_uint64(block), stream)
        freed = time.perf_counter()
        status = status or self._wait(stream)
        self.spent += freed - begin
        self.waited += time.perf_counter() - freed
        if status != 0:
            raise Problem(f"cuMemFreeAsync: {self.driver.name_of(status)}")

    def begin(self):
        self._set(self.RESERVED_HIGH, 0)
        self.spent = self.waited = 0.0

    def peak(self):
        value = ctypes.c_uint64()
        self.driver.call("cuMemPoolGetAttribute", self.pool, self.RESERVED_HIGH, ctypes.byref(value))
        return value.value

    def _empty_call(self):
        """Seconds that a call takes in which the driver has nothing to do."""
        calls, version = 2000, ctypes.c_int()
        reference, spent = ctypes.byref(version), 0.0
        for _ in range(calls):
            begin = time.perf_counter()
            self._empty(reference)
            spent += time.perf_counter() - begin
        return spent / calls

    def figures(self, calls):
        own = max(self.spent - calls * self._empty_call(), 0.0)
        return {"driver_calls": calls, "wait_seconds": self.waited,
                "driver_seconds": own + (0.0 if self.keep else self.waited)}


def run_pass(trace, on):
    """The pass's seconds and failed allocations, and the blocks that it leaves live."""
    alloc, free, failure = on.alloc, on.free, on.failure
    blocks, failed = [None] * trace.slots, 0
    gc.disable()
    begin = time.perf_counter()
    for frees, slot, size, stream in trace.events:
        if frees:
            block = blocks[slot]
            if block is not None:
                blocks[slot] = None
                free(block, stream)
        elif size:
            try:
                blocks[slot] = alloc(size, stream)
            except failure:
                failed += 1
    seconds = time.perf_counter() - begin
    gc.enable()
    return seconds, failed, [block for block in blocks if block is not None]


def measure(trace, on):
    """The figures of a first pass, with warm ones beside it."""
    on.begin()
    first, failed, left = run_pass(trace, on)
    peak = on.peak()
    figures = on.figures(sum(bool(size) for _, _, size, _ in trace.events))
    warm = []
    for _ in range(on.warm_passes):
        for block in left:
            on.free(block, 0)
        seconds, more, left = run_pass(trace, on)
        warm.append(seconds)
        failed = max(failed, more)
    difference = first - statistics.median(warm)
    figures.setdefault("driver_seconds", difference)
    return {
        "events": len(trace.events),
        "peak_live_bytes": trace.peak_live,
        "peak_reserved_bytes": peak,
        "ratio": peak / trace.peak_live,
        "first_seconds": first,
        "first_less_warm_seconds": difference,
        "failed": failed,
        **figures,
    }


def open_way(way, streams):
    if way.startswith("torch"):
        return Torch(streams, expandable=way.endswith("expandable"))
    return Async(streams, keep=way.endswith("keep"))


def measure_apart(way, path, out):
    """In a process of its own, so that the allocator is fresh; its exit status."""
    child = os.fork()
    if child != 0:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        trace = trace_log.read(path)
        on = open_way(way, trace.streams)
        out.write(json.dumps({"torch": on.version, **measure(trace, on)}) + "\n")
        out.flush()
        status = 0
    except Missing as error:
        print(error, file=sys.stderr)
        status = MISSING
    except (Problem, trace_log.BadLog) as error:
        print(error, file=sys.stderr)
    except BaseException:  # the rest of the program is the parent's
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(status)


def measure_all(way, paths):
    """A line of JSON for each trace. What takes long to load, and starts no device, is loaded once."""
    if way.startswith("torch"):
        try:
            import torch  # pylint: disable=unused-import
        except ImportError:
            pass  # told by the first trace's process
    for path in paths:
        status = measure_apart(way, path, sys.stdout)
        if status != 0:
            return 1 if status < 0 else status
    return 0


# The other side: starts the processes and tells what comes of them.


def run_other(way, traces):
    """The figures of every trace, by PyTorch or the driver itself."""
    environment = {key: value for key, value in os.environ.items() if key not in TORCH_SETTINGS}
    if way == "torch expandable":
        environment.update({key: "expandable_segments:True" for key in TORCH_SETTINGS})
    done = subprocess.run(
        [sys.executable, "-B", os.path.abspath(__file__), "--measure", way, *traces.values()],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
    )
    message = (done.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"])[-1]
    if done.returncode == MISSING:
        raise Missing(message)
    lines = done.stdout.splitlines()
    if done.returncode != 0 or len(lines) != len(traces):
        raise Problem(f"{way}: {message} (status {done.returncode})")
    return dict(zip(traces, map(json.loads, lines)))


def run_quay(program, spec, path):
    try:
        done = subprocess.run([program, "replay", path, "--on", spec, "--json"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    except OSError as error:
        raise Problem(f"the program quay can't be run: {error}") from None
    if done.returncode != 0:
        message = done.stderr.decode(errors="replace").strip()
        raise Problem(f"{program} replay {path} --on {spec}: {message} (status {done.returncode})")
    figures = json.loads(done.stdout)
    events = figures["events"]
    difference = (figures["ns_per_event"] - figures["ns_per_event_warm"]) * events * 1e-9
    return {
        **figures,
        "meter_seconds": figures["driver_seconds"],
        "first_seconds": figures["ns_per_event"] * events * 1e-9,
        "first_less_warm_seconds": difference,
        "driver_seconds": max(figures["driver_seconds"], difference),
    }


def find_traces(folder):
    paths = sorted(glob.glob(os.path.join(folder, "*.csv.gz")) +
                   glob.glob(os.path.join(folder, "*.csv")))
    if not paths:
        raise Problem(f"no trace, such as gpt2_train.csv.gz, is in {folder}")
    return {os.path.basename(path).split(".")[0]: path for path in paths}


def run_rounds(options, traces):
    """Runs by trace and way, reasons for ways that are missing or failed, PyTorch's version."""
    runs = {trace: {} for trace in traces}
    left_out = {way: Missing("it was not asked for") for way in options.without}
    versions, slow = set(), set()
    end = time.monotonic() + options.seconds
    for number in range(options.rounds):
        if number > 0 and time.monotonic() > end:
            break
        for way, spec in QUAY.items():
            for trace, path in traces.items():
                runs[trace].setdefault(way, []).append(run_quay(options.quay, spec, path))
        for way in OTHERS:
            if way in left_out or way in slow:
                continue
            begin = time.monotonic()
            try:
                found = run_other(way, traces)
            except (Missing, Problem) as error:
                # What the others have shown is not lost with it.
                left_out[way] = error
                continue
            for trace, figures in found.items():
                versions.add(figures.pop("torch"))
                runs[trace].setdefault(way, []).append(figures)
            if time.monotonic() - begin > SLOW:
                slow.add(way)
    return runs, left_out, next((each for each in versions if each), None)


def judge(traces, left_out):
    """The rule by trace, and reasons by trace where there is no verdict."""
    verdicts, reasons = {}, {}
    for trace, ways in traces.items():
        ours, theirs = ways["pool"], ways.get("torch expandable")
        if theirs is None:
            reasons[trace] = str(left_out.get("torch expandable", "it was not measured"))
        elif ours["failed"] or theirs["failed"]:
            reasons[trace] = "allocations failed"
        elif theirs["driver_seconds"] <= 0:
            reasons[trace] = "PyTorch's first pass was no slower than its warm one"
        else:
            ratio = ours["driver_seconds"] / theirs["driver_seconds"]
            verdicts[trace] = {"of_expandable": ratio, "floor": FLOOR, "goal": GOAL,
                               "holds": ratio <= FLOOR, "goal_reached": ratio <= GOAL}
    return verdicts, reasons


def print_table(traces):
    for trace, ways in traces.items():
        live = ways["pool"]["peak_live_bytes"]
        print(f"{trace}: {ways['pool']['events']:.0f} events, {live * 1e-9:.2f} GB live at most")
        print(f"  {'':18}{'ratio':>8}{'driver ms':>12}{'first-warm ms':>15}{'first pass ms':>15}"
              f"{'driver calls':>14}{'failed':>8}")
        for way, figures in ways.items():
            print(f"  {way:18}{figures['ratio']:8.3f}{figures['driver_seconds'] * 1e3:12.2f}"
                  f"{figures['first_less_warm_seconds'] * 1e3:15.2f}"
                  f"{figures['first_seconds'] * 1e3:15.2f}{figures['driver_calls']:14.0f}"
                  f"{figures['failed']:8.0f}")
        clocks = ", ".join(f"{way} {ways[way]['meter_seconds'] * 1e3:.2f} ms" for way in QUAY)
        print(f"  in the backend, by the program's own clock: {clocks}")


def tell(verdicts, reasons, left_out):
    """The lines of the rule; the exit status."""
    for way, reason in left_out.items():
        print(f"{way} is left out: {reason}")
    for trace, verdict in verdicts.items():
        state = "MISSED" if not verdict["holds"] else "goal" if verdict["goal_reached"] else "holds"
        print(f"{state}: {trace}: the pool's driver time of a first pass is {verdict['of_expandable']:.3f} "
              f"of PyTorch's expandable segments' (at most {FLOOR}, goal {GOAL})")
    for trace, reason in reasons.items():
        print(f"skipped: no verdict on {trace}: {reason}")
    for error in left_out.values():
        if isinstance(error, Problem):
            raise error
    if not all(verdict["holds"] for verdict in verdicts.values()):
        return MISSED
    return MISSING if reasons else 0


def compare(options):
    driver = Driver()
    device, version = driver.describe()
    traces = find_traces(options.traces)
    runs, left_out, torch = run_rounds(options, traces)
    rounds = len(next(iter(runs.values()))["pool"])
    print(f"{device}, CUDA driver {version}, PyTorch {torch or 'not there'}, medians of {rounds} rounds")
    medians = {trace: {way: medians_of(each) for way, each in ways.items()}
               for trace, ways in runs.items()}
    verdicts, reasons = judge(medians, left_out)
    print_table(medians)
    counts = {way: len(each) for way, each in next(iter(runs.values())).items()}
    for way, count in counts.items():
        if count < rounds:
            print(f"{way} was measured in {count} of the rounds: it takes more than {SLOW} seconds in one")
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump({"device": device, "driver": version, "torch": torch, "rounds": rounds,
                   "traces": medians, "runs": counts,
                   "left_out": {way: str(error) for way, error in left_out.items()}, "rule": verdicts}, file, indent=1)
        file.write("\n")
    in_ms = {trace: {way: {"ratio": figures["ratio"], "ms": figures["driver_seconds"] * 1e3}
                     for way, figures in ways.items()} for trace, ways in medians.items()}
    frontier.draw(in_ms, options.svg, "ms", "ms")
    return tell(verdicts, reasons, left_out)


def main(arguments):
    if arguments[:1] == ["--measure"]:
        return measure_all(arguments[1], arguments[2:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("json")
    parser.add_argument("svg")
    parser.add_argument("--quay", default="quay", help="the program (default: the one in PATH)")
    parser.add_argument("--traces", default=os.path.join(here, "..", "tests", "data", "traces"),
                        help="the folder of the traces")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=180, help="no round begins after so many")
    parser.add_argument("--without", default="", metavar="WAY[,WAY]",
                        help=f"of {', '.join(OTHERS)}: these are not measured")
    options = parser.parse_args(arguments)
    options.without = [way for way in options.without.split(",") if way]
    unknown = [way for way in options.without if way not in OTHERS]
    if unknown:
        parser.error(f"--without takes ways out of {', '.join(OTHERS)}, not {', '.join(unknown)}")
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    try:
        return compare(options)
    except Missing as error:
        print(f"skipped: {error}")
        return MISSING
    except (Problem, OSError) as error:
        print(f"pool_gpu_compare.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
