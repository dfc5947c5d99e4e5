"""bench/pool_gpu_compare.py on the simulated driver, with a stand-in for PyTorch, and what it is made of:
the reader of logs, counting, drawing, errors. No time of these runs means anything.
"""

import argparse
import contextlib
import gzip
import io
import json
import os
import subprocess
import sys
import unittest
from unittest import mock
from xml.etree import ElementTree

from support.program import DATA, PROGRAM, SIMCUDA, ProgramTest

BENCH = os.path.join(os.environ["QUAY_SOURCE_DIR"], "bench")
sys.path.insert(0, BENCH)

import frontier  # pylint: disable=wrong-import-position
import pool_gpu_compare  # pylint: disable=wrong-import-position
import trace_log  # pylint: disable=wrong-import-position

HEADER = trace_log.HEADER
MIB = 1 << 20

# Segments of 2 MiB, one a block, kept for good: 5 ms for one that is new.
TORCH = '''
import os, time
__version__ = "2.11.0"
EXPANDABLE = "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
assert os.environ.get("PYTORCH_ALLOC_CONF") == os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
kept, live, known = [], {{}}, []

class cuda:
    class OutOfMemoryError(RuntimeError):
        pass

    class Stream:
        cuda_stream = 7

    @staticmethod
    def is_available():
        return {available}

    @staticmethod
    def synchronize():
        pass

    @staticmethod
    def current_stream():
        return cuda.Stream

    @staticmethod
    def current_device():
        return 0

    @staticmethod
    def caching_allocator_alloc(size, device, stream):
        assert (device, stream) == (0, 7)
        if size > 64 << 20:
            raise cuda.OutOfMemoryError
        size = (size + (2 << 20) - 1) >> 21 << 21
        for index, (address, length) in enumerate(kept):
            if length == size:
                del kept[index]
                break
        else:
            time.sleep({delay})
            known.append(size)
            address = len(known) << 32
        live[address] = size
        return address

    @staticmethod
    def caching_allocator_delete(address):
        kept.append((address, live.pop(address)))

    @staticmethod
    def reset_peak_memory_stats():
        pass

    @staticmethod
    def memory_stats():
        return {{"reserved_bytes.all.peak": sum(known), "num_device_alloc": len(known)}}

    @staticmethod
    def memory_snapshot():
        return [{{"is_expandable": EXPANDABLE and {obeys}}} for _ in known]
'''

# What is called where PyTorch has it: the public functions are not, then.
RAW = '''
class _C:
    public = cuda.caching_allocator_alloc

    @staticmethod
    def _cuda_cudaCachingAllocator_raw_alloc(size, stream):
        return _C.public(size, 0, stream)

    _cuda_cudaCachingAllocator_raw_delete = staticmethod(cuda.caching_allocator_delete)

cuda.caching_allocator_alloc = cuda.caching_allocator_delete = None
'''


def log(*events):
    lines = [f"0,0,{action},{pointer:#x},{size},{stream:#x}" for action, pointer, size, stream in events]
    return "\n".join([HEADER, *lines, ""]).encode()


SMALL = log(
    ("allocate", 0x10, 3 * MIB, 0),
    ("allocate", 0x20, 5 * MIB, 1),
    ("free", 0x10, 3 * MIB, 0),
    ("allocate", 0x30, 3 * MIB, 0),
    ("free", 0x20, 5 * MIB, 1),
    ("allocate", 0x40, 7 * MIB, 1),
)


class Reader(ProgramTest):
    def read_log(self, data):
        return trace_log.read(self.write("log.csv", data))

    def test_events_have_slots_sizes_and_streams(self):
        trace = self.read_log(SMALL)
        self.assertEqual(
            trace.events,
            [
                (False, 0, 3 * MIB, 0),
                (False, 1, 5 * MIB, 1),
                (True, 0, 3 * MIB, 0),
                (False, 0, 3 * MIB, 0),
                (True, 1, 5 * MIB, 1),
                (False, 1, 7 * MIB, 1),
            ],
        )
        self.assertEqual((trace.slots, trace.streams, trace.peak_live), (2, [0, 1], 10 * MIB))

    def test_recorded_traces_are_those_that_the_program_reads(self):
        for name, events, peak in (
            ("gpt2_train", 34951, 10447389704),
            ("resnet_train", 19692, 3780333200),
            ("two_stream", 8000, 868578061),
        ):
            with self.subTest(name=name):
                trace = trace_log.read(os.path.join(DATA, "traces", f"{name}.csv.gz"))
                self.assertEqual((len(trace.events), trace.peak_live), (events, peak))

    def test_forms_of_other_writers_are_understood(self):
        data = f"{HEADER}\r\n1,x,allocate,7f00AB,64,0\r\n\r\n1,x,free,0x7F00ab,64,0x0\r\n"
        data += "1,x,allocate failure,0x0,99,0x0\r\n1,x,allocate,(nil),0,(nil)"
        trace = self.read_log(gzip.compress(data.encode()))
        self.assertEqual(trace.events, [(False, 0, 64, 0), (True, 0, 64, 0)])

    def test_faults_are_told_with_their_line(self):
        first = ("allocate", 0x10, 8, 0)
        for events, part in (
            ([first, ("free", 0x11, 8, 0)], "line 3: 0x11 is freed and was not allocated"),
            ([first, first], "line 3: 0x10 is allocated already"),
            ([("move", 0x10, 8, 0)], "line 2: 'move' is none of allocate"),
            ([("free", 0x10, 8, 0)], "line 2: 0x10 is freed"),
        ):
            with self.subTest(part=part), self.assertRaises(trace_log.BadLog) as raised:
                self.read_log(log(*events))
            self.assertIn(part, str(raised.exception))
            self.assertIn("log.csv, ", str(raised.exception))
        for line, part in (
            ("0,0,allocate,0x1,-5,0", "'-5' is no size"),
            ("0,0,allocate,0x1,1_0,0", "'1_0' is no size"),
            ("0,0,allocate,0x1,0x10,0", "'0x10' is no size"),
            ("0,0,allocate,0xg,5,0", "'0xg' is no pointer"),
            ("0,0,allocate,,5,0", "'' is no pointer"),
            ("0,0,allocate,0x1,5,s1", "'s1' is no stream"),
            ("0,0,allocate,0x1,5", "6 fields are expected, and here are 5"),
        ):
            with self.subTest(line=line), self.assertRaises(trace_log.BadLog) as raised:
                self.read_log(f"{HEADER}\n{line}\n".encode())
            self.assertIn(f"line 2: {part}", str(raised.exception))

    def test_what_is_no_log_and_what_was_cut_off_are_told(self):
        for data in (b"", b"a,b\n", gzip.compress(SMALL * 50)[:60], b"\xff\xfe\n"):
            with self.subTest(data=data[:8]), self.assertRaises(trace_log.BadLog):
                self.read_log(data)


class Counting(unittest.TestCase):
    """A pass on an allocator that is made up."""

    class failure(Exception):  # pylint: disable=invalid-name
        pass

    warm_passes = 3

    def setUp(self):
        self.calls, self.live, self.reserved = [], {}, 0

    def alloc(self, size, stream):
        if size == 13:
            raise self.failure
        self.calls.append(("alloc", size, stream))
        block = len(self.calls)
        self.live[block] = size
        self.reserved = max(self.reserved, 2 * sum(self.live.values()))
        return block

    def free(self, block, stream):
        self.calls.append(("free", self.live.pop(block), stream))

    def begin(self):
        pass

    def peak(self):
        return self.reserved

    def figures(self, calls):
        return {"driver_calls": calls}

    def trace(self, *events):
        return trace_log.Trace(events=list(events), slots=9, streams=[0, 1], peak_live=30)

    def test_each_event_is_one_call_on_its_stream(self):
        trace = self.trace((False, 0, 10, 1), (False, 1, 20, 0), (True, 0, 10, 1), (False, 2, 5, 1))
        _, failed, left = pool_gpu_compare.run_pass(trace, self)
        self.assertEqual(
            self.calls, [("alloc", 10, 1), ("alloc", 20, 0), ("free", 10, 1), ("alloc", 5, 1)]
        )
        self.assertEqual((failed, [self.live[block] for block in left]), (0, [20, 5]))

    def test_failed_and_empty_blocks_are_not_freed(self):
        trace = self.trace((False, 0, 13, 0), (False, 1, 0, 0), (True, 0, 13, 0), (True, 1, 0, 0))
        _, failed, left = pool_gpu_compare.run_pass(trace, self)
        self.assertEqual((self.calls, failed, left), ([], 1, []))

    def test_what_is_left_live_is_freed_between_the_passes(self):
        figures = pool_gpu_compare.measure(self.trace((False, 0, 10, 0), (False, 1, 20, 1)), self)
        self.assertEqual(len(self.live), 2)
        self.assertEqual(sum(call[0] == "alloc" for call in self.calls), 2 * 4)
        self.assertEqual((figures["ratio"], figures["peak_reserved_bytes"]), (2, 60))
        self.assertEqual(figures["driver_seconds"], figures["first_less_warm_seconds"])


class Rule(unittest.TestCase):
    def judge(self, ours, theirs, failed=0):
        ways = {"pool": {"driver_seconds": ours, "failed": 0}}
        if theirs is not None:
            ways["torch expandable"] = {"driver_seconds": theirs, "failed": failed}
        return pool_gpu_compare.judge({"t": ways}, {"torch expandable": "no PyTorch"})

    def test_the_floor_is_all_of_their_time_and_the_goal_half_of_it(self):
        for ours, holds, goal in ((0.5, True, True), (0.51, True, False), (1, True, False),
                                  (1.01, False, False)):
            with self.subTest(ours=ours):
                verdict = self.judge(ours, 1.0)[0]["t"]
                self.assertEqual((verdict["holds"], verdict["goal_reached"]), (holds, goal))

    def test_without_figures_there_is_no_verdict_and_a_reason(self):
        self.assertEqual(self.judge(1, None), ({}, {"t": "no PyTorch"}))
        self.assertEqual(self.judge(1, 1, failed=2), ({}, {"t": "allocations failed"}))
        self.assertIn("no slower", self.judge(1, -0.1)[1]["t"])


class Rounds(unittest.TestCase):
    """How often each way is measured."""

    def count(self, rounds=3, seconds=100.0, slow=100.0, without=()):
        def other(way, traces):
            if way == "torch":
                raise pool_gpu_compare.Missing("no PyTorch")
            return {trace: {"torch": None, "x": 1} for trace in traces}

        options = argparse.Namespace(rounds=rounds, seconds=seconds, quay="quay", without=without)
        with mock.patch.object(pool_gpu_compare, "run_other", other), \
                mock.patch.object(pool_gpu_compare, "run_quay", lambda *_: {"x": 1}), \
                mock.patch.object(pool_gpu_compare, "SLOW", slow):
            runs, left_out, _ = pool_gpu_compare.run_rounds(options, {"a": "a.csv", "b": "b.csv"})
        self.assertEqual(runs["a"].keys(), runs["b"].keys())
        reasons = {"torch": "no PyTorch", **dict.fromkeys(without, "it was not asked for")}
        self.assertEqual({way: str(error) for way, error in left_out.items()}, reasons)
        return {way: len(each) for way, each in runs["b"].items()}

    def test_each_way_that_is_there_is_measured_in_each_round(self):
        self.assertEqual(self.count(), {"pool": 3, "keep=tight": 3, "torch expandable": 3,
                                        "async": 3, "async keep": 3})

    def test_no_round_begins_after_the_time_but_the_first(self):
        self.assertEqual(set(self.count(seconds=-1.0).values()), {1})

    def test_what_is_slow_is_measured_once(self):
        self.assertEqual(self.count(slow=-1.0), {"pool": 3, "keep=tight": 3, "torch expandable": 1,
                                                 "async": 1, "async keep": 1})


    def test_ways_that_are_not_wanted_are_left_out(self):
        self.assertEqual(self.count(without=["async", "torch expandable"]),
                         {"pool": 3, "keep=tight": 3, "async keep": 3})

    def test_ways_that_there_are_not_are_refused(self):
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as errors:
            pool_gpu_compare.main(["--without", "torch,asinc", "a.json", "a.svg"])
        self.assertIn("not asinc", errors.getvalue())


class Drawing(ProgramTest):
    def draw(self, traces, **options):
        path = self.path("out.svg")
        frontier.draw(traces, path, "ms", "ms", **options)
        root = ElementTree.parse(path).getroot()
        space = "{http://www.w3.org/2000/svg}"
        texts = [each.text for each in root.iter(f"{space}text")]
        circles = [(float(c.get("cx")), float(c.get("cy"))) for c in root.iter(f"{space}circle")]
        return texts, circles

    def test_every_way_of_every_trace_is_a_point_with_its_name(self):
        texts, circles = self.draw({
            "one": {"pool": {"ratio": 1.1, "ms": 2}, "a<b": {"ratio": 1.5, "ms": 30}},
            "two": {"pool": {"ratio": 1.0, "ms": 1}},
        })
        self.assertEqual(len(circles), 3)
        for name in ("one", "two", "pool", "a<b"):
            self.assertIn(name, texts)

    def test_memory_goes_to_the_right_and_time_upwards_by_its_logarithm(self):
        _, points = self.draw({"t": {
            "a": {"ratio": 1.0, "ms": 1}, "b": {"ratio": 1.5, "ms": 10}, "c": {"ratio": 2.0, "ms": 100},
        }}, least=1)
        self.assertEqual([x for x, _ in points], [60, 160, 260])
        self.assertEqual([y for _, y in points], [200, 117.5, 35])

    def test_points_without_time_or_spread_are_drawn_at_the_bottom(self):
        _, points = self.draw({"t": {"a": {"ratio": 1.0, "ms": 0}, "b": {"ratio": 1.0, "ms": -3},
                                     "c": {"ratio": 1.0, "ms": 5}}})
        self.assertEqual([y for _, y in points], [200, 200, 35])
        self.assertEqual(len(self.draw({"t": {"a": {"ratio": 1.0, "ms": 0}}})[1]), 1)


class Compare(ProgramTest):
    def setUp(self):
        super().setUp()
        os.mkdir(self.path("traces"))
        self.write("traces/small.csv.gz", gzip.compress(SMALL))

    def compare(self, *arguments, torch=True, available=True, obeys=True, raw="", delay=0.2,
                quay=PROGRAM, driver=SIMCUDA):
        os.makedirs(self.path("modules"), exist_ok=True)
        if torch:
            text = TORCH.format(available=available, obeys=obeys, delay=delay) + raw
            self.write("modules/torch.py", text.encode())
        return subprocess.run(
            [sys.executable, "-B", os.path.join(BENCH, "pool_gpu_compare.py"), "--quay", quay,
             "--traces", self.path("traces"), "--rounds", "1", *arguments,
             self.path("out.json"), self.path("out.svg")],
            env={**os.environ, "PYTHONPATH": self.path("modules"), "PYTHONNOUSERSITE": "1",
                 "QUAY_CUDA_LIBRARY": driver, "PYTORCH_CUDA_ALLOC_CONF": "nonsense"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=250, check=False, text=True,
        )

    @unittest.skipIf(not SIMCUDA, "the CUDA backend is not built")
    def test_all_ways_are_in_the_table_the_json_and_the_picture(self):
        # A fifth of a second for a segment is slow enough for any machine.
        done = self.compare()
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertRegex(done.stdout, "(?m)^(goal|holds): small: the pool's driver time of a first pass is ")
        result = json.loads(self.read("out.json"))
        ways = result["traces"]["small"]
        names = ["pool", "keep=tight", "torch", "torch expandable", "async", "async keep"]
        self.assertEqual(list(ways), names)
        for name in names:
            self.assertRegex(done.stdout, rf"(?m)^  {name} +\d")
            self.assertIn(f">{name}</text>", self.read("out.svg").decode())
            self.assertEqual(ways[name]["peak_live_bytes"], 10 * MIB, name)
            self.assertEqual(ways[name]["failed"], 0)
        # Blocks of 4, 6 and 8 MiB; the driver's own pool holds here what is live.
        self.assertEqual(ways["torch"]["peak_reserved_bytes"], 18 * MIB)
        self.assertEqual(ways["torch expandable"]["driver_calls"], 3)
        self.assertEqual(ways["async keep"]["peak_reserved_bytes"], 10 * MIB)
        self.assertEqual(ways["async"]["driver_calls"], 6)
        self.assertGreater(ways["torch"]["driver_seconds"], 0.3)
        self.assertGreaterEqual(ways["pool"]["driver_seconds"], ways["pool"]["meter_seconds"])
        self.assertEqual((result["torch"], result["rounds"]), ("2.11.0", 1))

    @unittest.skipIf(not SIMCUDA, "the CUDA backend is not built")
    def test_what_pytorch_itself_calls_gives_the_same_figures(self):
        done = self.compare(raw=RAW)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        ways = json.loads(self.read("out.json"))["traces"]["small"]
        self.assertEqual(ways["torch"]["peak_reserved_bytes"], 18 * MIB)
        self.assertEqual(ways["torch expandable"]["driver_calls"], 3)

    @unittest.skipIf(not SIMCUDA, "the CUDA backend is not built")
    def test_a_slower_pool_misses_the_floor(self):
        figures = {"events": 6, "peak_live_bytes": 10 * MIB, "peak_reserved_bytes": 12 * MIB,
                   "ratio": 1.2, "ns_per_event": 9e9, "ns_per_event_warm": 1e9, "driver_calls": 3,
                   "driver_seconds": 50.0, "failed": 0}
        quay = self.write("quay", f"#!/bin/sh\necho '{json.dumps(figures)}'\n".encode())
        os.chmod(quay, 0o755)
        done = self.compare(quay=quay)
        self.assertEqual((done.returncode, done.stderr), (3, ""), done.stdout)
        # The larger one of the program's clock and of the difference: 48 seconds, and 50.
        self.assertEqual(json.loads(self.read("out.json"))["traces"]["small"]["pool"]["driver_seconds"], 50)
        self.assertIn("MISSED: small: ", done.stdout)

    @unittest.skipIf(not SIMCUDA, "the CUDA backend is not built")
    def test_allocations_that_fail_leave_no_verdict(self):
        self.write("traces/small.csv.gz", log(("allocate", 16, 65 * MIB, 0), ("free", 16, 65 * MIB, 0)))
        done = self.compare()
        self.assertEqual((done.returncode, done.stderr), (77, ""), done.stdout)
        self.assertIn("skipped: no verdict on small: allocations failed\n", done.stdout)

    @unittest.skipIf(not SIMCUDA, "the CUDA backend is not built")
    def test_without_pytorch_the_rest_is_told_and_there_is_no_verdict(self):
        for options, reason in (({"torch": False}, "No module named 'torch'"),
                                ({"available": False}, "PyTorch finds no CUDA device")):
            with self.subTest(reason=reason):
                done = self.compare(**options)
                self.assertEqual((done.returncode, done.stderr), (77, ""), done.stdout)
                last = done.stdout.splitlines()[-1]
                self.assertTrue(last.startswith("skipped: no verdict on small: PyTorch"), last)
                self.assertIn(reason, last)
                self.assertIn("async keep", done.stdout)
                self.assertIn("torch expandable is left out: ", done.stdout)
                self.assertEqual(json.loads(self.read("out.json"))["rule"], {})

    @unittest.skipIf(not SIMCUDA, "the CUDA backend is not built")
    def test_a_pytorch_that_does_not_take_its_settings_is_an_error_after_all_others(self):
        done = self.compare(obeys=False)
        self.assertEqual(done.returncode, 2, done.stdout)
        message = "torch expandable: PyTorch does not use expandable segments, against its settings"
        self.assertIn(f"pool_gpu_compare.py: {message}", done.stderr)
        result = json.loads(self.read("out.json"))
        self.assertIn(message, result["left_out"]["torch expandable"])
        self.assertEqual(list(result["traces"]["small"]),
                         ["pool", "keep=tight", "torch", "async", "async keep"])

    def test_without_a_driver_it_is_skipped(self):
        done = self.compare(driver=self.path("no.so"))
        self.assertEqual((done.returncode, done.stderr), (77, ""))
        self.assertRegex(done.stdout, r"\Askipped: no CUDA driver: [^\n]*no\.so[^\n]*\n\Z")

    @unittest.skipIf(not SIMCUDA, "the CUDA backend is not built")
    def test_errors_are_one_line_and_status_2(self):
        done = self.compare(quay=self.path("missing"))
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"\Apool_gpu_compare\.py: the program quay can't be run: .*\n\Z")
        self.write("traces/bad.csv", b"nothing\n")
        done = self.compare()
        self.assertEqual(done.returncode, 2)
        self.assertIn("bad.csv", done.stderr)
        done = self.compare("--traces", self.path("modules"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("no trace, such as gpt2_train.csv.gz, is in ", done.stderr)


if __name__ == "__main__":
    unittest.main()
