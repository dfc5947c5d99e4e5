"""quay replay, seen from outside."""

import gzip
import json
import os
import subprocess
import unittest

from support.program import DATA, PROGRAM, SANITIZED, ProgramTest, run

HEADER = "Thread,Time,Action,Pointer,Size,Stream"
KEYS = [
    "events",
    "peak_live_bytes",
    "peak_reserved_bytes",
    "ratio",
    "ns_per_event",
    "ns_per_event_warm",
    "driver_calls",
    "driver_seconds",
    "failed",
]
SIMCUDA = os.environ.get("QUAY_SIM_CUDA")


def line(action, pointer, size, stream="0x0", thread="7", time="12:00:07:000134"):
    return f"{thread},{time},{action},{pointer},{size},{stream}"


def alloc(pointer, size, stream="0x0"):
    return line("allocate", hex(pointer), size, stream)


def free(pointer, size, stream="0x0"):
    return line("free", hex(pointer), size, stream)


class ReplayTest(ProgramTest):
    def trace(self, *lines, name="trace.csv"):
        return self.write(name, "".join(f"{text}\n" for text in (HEADER, *lines)).encode())

    def replay(self, path, *arguments, on="cpu", **options):
        output = self.succeed("replay", path, "--on", on, "--json", *arguments, **options)
        figures = json.loads(output)
        self.assertEqual(list(figures), KEYS)
        return figures


class Replay(ReplayTest):
    def test_figures_of_a_small_trace_are_those_of_its_events(self):
        path = self.trace(
            alloc(0x1000, 3 << 20),
            alloc(0x2000, 5 << 20),
            free(0x1000, 3 << 20),
            alloc(0x3000, 1 << 20),
            free(0x2000, 5 << 20),
        )
        figures = self.replay(path)
        self.assertEqual(figures["events"], 5)
        self.assertEqual(figures["peak_live_bytes"], 8 << 20)
        self.assertEqual(figures["peak_reserved_bytes"], 8 << 20)
        self.assertEqual(figures["ratio"], 1)
        self.assertEqual(figures["driver_calls"], 5)
        self.assertGreater(figures["driver_seconds"], 0)
        self.assertLess(figures["driver_seconds"] * 1e9, figures["ns_per_event"] * 5)
        self.assertGreater(figures["ns_per_event_warm"], 0)
        self.assertEqual(figures["failed"], 0)

    def test_what_the_backend_reserves_above_the_request_is_in_the_ratio(self):
        page = os.sysconf("SC_PAGE_SIZE")
        path = self.trace(alloc(0x1000, (1 << 20) + 1))
        figures = self.replay(path)
        self.assertEqual(figures["peak_live_bytes"], (1 << 20) + 1)
        self.assertEqual(figures["peak_reserved_bytes"], (1 << 20) + page)
        self.assertAlmostEqual(
            figures["ratio"], ((1 << 20) + page) / ((1 << 20) + 1), places=6
        )

    def test_real_traces_have_the_peaks_that_were_recorded(self):
        for name, events, peak in (
            ("gpt2_train", 34951, 10447389704),
            ("resnet_train", 19692, 3780333200),
            ("two_stream", 8000, 868578061),
        ):
            with self.subTest(name=name):
                figures = self.replay(os.path.join(DATA, "traces", f"{name}.csv.gz"))
                self.assertEqual(figures["events"], events)
                self.assertEqual(figures["peak_live_bytes"], peak)
                self.assertGreaterEqual(figures["peak_reserved_bytes"], peak)
                self.assertEqual(figures["failed"], 0)

    def test_a_compressed_trace_is_the_same_trace(self):
        path = self.trace(alloc(0x1000, 4096), free(0x1000, 4096), alloc(0x1000, 12345))
        with open(path, "rb") as file:
            packed = self.write("trace.csv.gz", gzip.compress(file.read()))
        plain, compressed = self.replay(path), self.replay(packed)
        for key in ("events", "peak_live_bytes", "peak_reserved_bytes", "driver_calls"):
            self.assertEqual(plain[key], compressed[key])

    def test_blocks_that_stay_live_are_freed_in_the_end(self):
        path = self.trace(alloc(0x1000, 100), alloc(0x2000, 200))
        self.replay(path, on="track+cpu")

    def test_allocations_that_fail_are_counted_and_the_replay_goes_on(self):
        path = self.trace(
            alloc(0x1000, 1000),
            alloc(0x2000, 2000),
            free(0x2000, 2000),
            alloc(0x3000, 3000),
            free(0x1000, 1000),
        )
        figures = self.replay(path, on="fault:nth=2+track+cpu")
        self.assertEqual(figures["failed"], 1)
        self.assertEqual(figures["events"], 5)
        self.assertEqual(figures["peak_live_bytes"], 4000)
        self.assertEqual(self.replay(path, on="fault:after=0+cpu")["failed"], 3)

    def test_the_text_tells_what_the_first_failure_said(self):
        path = self.trace(alloc(0x1000, 1000), alloc(0x2000, 20 << 20), alloc(0x3000, 30 << 20))
        output = self.succeed("replay", path, "--on", "limit:1MiB+cpu")
        self.assertRegex(output, r"\A3 events on limit:1MiB\+cpu, 2 allocations failed\n"
                                 r"first:   [^\n]*20971520[^\n]*\npeak: ")

    def test_failures_of_the_second_pass_are_counted_too(self):
        path = self.trace(alloc(0x1000, 1000), alloc(0x2000, 2000))
        self.assertEqual(self.replay(path, on="fault:after=2+cpu")["failed"], 2)

    def test_the_log_of_a_trace_layer_replays_with_the_same_figures(self):
        trace = os.path.join(DATA, "traces", "two_stream.csv.gz")
        log = self.path("log.csv")
        first = self.replay(trace, on=f"trace:{log}+cpu")
        again = self.replay(log, on="track+cpu")
        # Both passes, and what each left live freed.
        with open(log) as file:
            lines = file.read().splitlines()
        allocated = sum(",allocate," in text for text in lines)
        self.assertEqual(again["events"], 2 * allocated)
        self.assertEqual(again["events"], len(lines) - 1)
        self.assertEqual(again["peak_live_bytes"], first["peak_live_bytes"])

    def test_nothing_live_has_no_ratio(self):
        figures = self.replay(self.trace())
        self.assertEqual([figures[key] for key in KEYS], [0] * len(KEYS))

    def test_lines_of_failed_allocations_take_no_part(self):
        path = self.trace(
            alloc(0x1000, 1000), line("allocate failure", "0x0", 1 << 62), free(0x1000, 1000)
        )
        figures = self.replay(path)
        self.assertEqual((figures["events"], figures["failed"]), (2, 0))

    def test_empty_blocks_may_share_the_null_pointer(self):
        path = self.trace(alloc(0, 0), alloc(0, 0), free(0, 0), free(0, 0))
        self.assertEqual(self.replay(path, on="track+cpu")["events"], 4)

    def test_a_pointer_may_be_allocated_again_after_its_free(self):
        lines = []
        for size in range(1, 200):
            lines += [alloc(0x1000, size), free(0x1000, size)]
        figures = self.replay(self.trace(*lines))
        self.assertEqual((figures["events"], figures["peak_live_bytes"]), (398, 199))

    def test_the_forms_of_other_writers_are_understood(self):
        self.write(
            "trace.csv",
            (
                f"{HEADER}\r\n"
                "139700000000000,12:00:07.000134,allocate,7f00AB,64,0\r\n"
                "\r\n"
                "18446744073709551615,23:59:59:999999,free,0x7F00ab,64,0xffffffffffffffff\r\n"
                "1,0,allocate,(nil),0,(nil)"
            ).encode(),
        )
        figures = self.replay(self.path("trace.csv"))
        self.assertEqual((figures["events"], figures["peak_live_bytes"]), (3, 64))

    def test_a_trace_of_many_live_blocks_and_streams_is_replayed_whole(self):
        count = 3000
        lines = [alloc(0x1000 * i, i, hex(i % 50)) for i in range(1, count + 1)]
        lines += [free(0x1000 * i, i, hex(i % 50)) for i in range(count, 0, -2)]
        figures = self.replay(self.trace(*lines), on="track+cpu")
        self.assertEqual(figures["events"], count + count // 2)
        self.assertEqual(figures["peak_live_bytes"], count * (count + 1) // 2)

    def test_the_text_has_the_same_figures(self):
        path = self.trace(alloc(0x1000, 2 << 20))
        output = self.succeed("replay", path, "--on", "cpu")
        self.assertRegex(
            output,
            r"\A1 events on cpu, 0 allocations failed\n"
            r"peak:    2\.0 MiB live, 2\.0 MiB reserved, ratio 1\.0000\n"
            r"time:    \d+\.\d ns an event, \d+\.\d ns when warm\n"
            r"backend: 1 calls, 0\.\d{6} s in them\n\Z",
        )

    def test_the_default_is_a_pool_on_the_host(self):
        path = self.trace(*(alloc(0x1000 * i, 1000) for i in range(1, 100)))
        result = run("replay", path, "--json")
        if b'"pool"' in result.stderr:
            self.skipTest("there is no pool layer")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertLess(json.loads(result.stdout)["driver_calls"], 50)

    def test_the_environment_does_not_choose_the_allocator(self):
        path = self.trace(alloc(0x1000, 1000))
        self.replay(path, on="cpu", env={"QUAY_BACKEND": "nonsense"})

    @unittest.skipIf(SANITIZED, "a sanitizer's own memory is counted with the program's")
    def test_memory_is_touched_only_if_asked_for(self):
        size = 96 << 20
        path = self.trace(alloc(0x1000, size), free(0x1000, size))
        peaks = []
        for arguments in ([], ["--touch"]):
            out = self.path("peak")
            command = [os.environ["QUAY_PEAK_MEMORY"], out, PROGRAM, "replay", path]
            subprocess.run(
                [*command, "--on", "cpu:hugepages=off", *arguments],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            with open(out) as file:
                peaks.append(int(file.read()) << 10)
        self.assertLess(peaks[0], size // 2)
        self.assertGreater(peaks[1], size)

    @unittest.skipIf(not SIMCUDA, "the CUDA backend is not built")
    def test_streams_of_the_trace_are_streams_of_the_device(self):
        path = self.trace(
            alloc(0x1000, 5000, "0x1"),
            alloc(0x2000, 70000, "0x2"),
            free(0x1000, 5000, "0x2"),
            alloc(0x3000, 5000, "0x2"),
        )
        environment = {"QUAY_CUDA_LIBRARY": SIMCUDA, "SIMCUDA_STRICT": "1"}
        for on in ("cuda:0", "track+cuda:0", "cuda:0,memory=pinned"):
            with self.subTest(on=on):
                figures = self.replay(path, "--touch", on=on, env=environment)
                self.assertEqual(figures["peak_live_bytes"], 75000)
                self.assertEqual(figures["failed"], 0)


class Faults(ReplayTest):
    def check(self, number, *parts, lines):
        message = self.fail_with("replay", self.trace(*lines), "--on", "cpu")
        self.assertIn(f"line {number}: ", message)
        self.assertIn("trace.csv", message)
        for part in parts:
            self.assertIn(part, message)

    def test_an_unknown_action_is_an_error_with_its_line(self):
        for action in ("realloc", "Allocate", "deallocate", "", "allocate ", "allocate failures"):
            with self.subTest(action=action):
                self.check(
                    3,
                    f"'{action}'",
                    "allocate, free or allocate failure",
                    lines=[alloc(0x1000, 1), line(action, "0x2000", 1)],
                )

    def test_a_free_of_an_unknown_pointer_is_an_error_with_its_line(self):
        self.check(2, "0x1000", lines=[free(0x1000, 1)])
        self.check(3, "0x1001", lines=[alloc(0x1000, 8), free(0x1001, 8)])
        self.check(4, "0x1000", lines=[alloc(0x1000, 8), free(0x1000, 8), free(0x1000, 8)])
        self.check(
            3, "0x1000", lines=[line("allocate failure", "0x1000", 8), free(0x1000, 8)]
        )

    def test_an_allocation_at_a_live_pointer_is_an_error_with_both_lines(self):
        self.check(
            4,
            "0x1000",
            "line 2 ",
            lines=[alloc(0x1000, 8), alloc(0x2000, 8), alloc(0x1000, 8)],
        )

    def test_a_bad_number_is_an_error_with_its_line(self):
        for text, part in (
            (line("allocate", "0x1000", "12x"), "'12x'"),
            (line("allocate", "0x1000", "-1"), "'-1'"),
            (line("allocate", "0x1000", "0x10"), "'0x10'"),
            (line("allocate", "0x1000", ""), "size"),
            (line("allocate", "0x1000", "18446744073709551616"), "below 2^64"),
            (line("allocate", "0x1000", " 1"), "' 1'"),
            (line("allocate", "0x", "1"), "'0x'"),
            (line("allocate", "0xfg", "1"), "'0xfg'"),
            (line("allocate", "", "1"), "pointer"),
            (line("allocate", "0x10000000000000000", "1"), "below 2^64"),
            (line("allocate", "0x1000", "1", stream="s1"), "'s1'"),
            (line("allocate", "0x1000", "1", stream=""), "stream"),
            (line("allocate", "0x1000", "1", stream="7f"), "'7f'"),
            (line("allocate", "0x1000", "1", thread="-7"), "'-7'"),
            (line("allocate", "0x1000", "1", thread=""), "thread"),
            (line("allocate", "0x1000", "1", time="noon"), "'noon'"),
        ):
            with self.subTest(line=text):
                self.check(3, part, lines=[alloc(0x9000, 1), text])

    def test_a_truncated_line_is_an_error_with_its_line(self):
        whole = alloc(0x2000, 4096)
        for length in range(1, len(whole) - len(",0x0")):
            self.check(3, "field", lines=[alloc(0x1000, 1), whole[:length]])
        self.check(3, "'0x'", lines=[alloc(0x1000, 1), whole[:-1]])

    def test_a_surplus_field_is_an_error_with_its_line(self):
        self.check(2, "7 fields", lines=[alloc(0x1000, 1) + ","])

    def test_a_file_that_is_no_log_is_an_error_with_its_line(self):
        for data in (b"", b"\n\n", b"pointer,size\n1,2\n", b"\0" * 5000, b"x" * 100000):
            with self.subTest(data=data[:20]):
                path = self.write("none", data)
                message = self.fail_with("replay", path, "--on", "cpu")
                self.assertRegex(message, r"line \d: ")

    def test_a_line_without_end_is_an_error_with_its_line(self):
        self.check(3, "4096 bytes", lines=[alloc(0x1000, 1), "7" * 100000])

    def test_a_compressed_file_that_was_cut_off_or_damaged_is_an_error(self):
        with open(os.path.join(DATA, "traces", "two_stream.csv.gz"), "rb") as file:
            data = file.read()
        message = self.fail_with("replay", self.write("cut.gz", data[:20000]), "--on", "cpu")
        self.assertRegex(message, r"line \d+: the compressed file ends too early")
        damaged = data[:-8] + bytes(8)
        message = self.fail_with("replay", self.write("bad.gz", damaged), "--on", "cpu")
        self.assertRegex(message, r"line \d+: the compressed file is damaged: \w+")

    def test_a_file_that_cannot_be_read_is_named_with_the_reason(self):
        message = self.fail_with("replay", self.path("missing"), "--on", "cpu")
        self.assertIn(self.path("missing"), message)
        self.assertIn("No such file", message)
        message = self.fail_with("replay", self.folder, "--on", "cpu")
        self.assertIn(f"'{self.folder}' is a directory", message)

    def test_a_named_pipe_without_a_writer_and_a_device_are_refused_at_once(self):
        pipe = os.path.join(self.folder, "pipe")
        os.mkfifo(pipe)
        self.assertIn("named pipe", self.fail_with("replay", pipe, "--on", "cpu"))
        self.assertIn("a device", self.fail_with("replay", "/dev/zero", "--on", "cpu"))

    def test_a_pipe_at_standard_input_is_read_to_its_end(self):
        text = "\n".join((HEADER, alloc(16, 1000), free(16, 1000))) + "\n"
        for data in (text.encode(), gzip.compress(text.encode())):
            done = subprocess.run(
                [PROGRAM, "replay", "/dev/stdin", "--on", "cpu", "--json"],
                input=data,
                capture_output=True,
                check=True,
            )
            self.assertEqual(json.loads(done.stdout)["events"], 2)

    def test_a_wrong_spec_is_an_error(self):
        path = self.trace(alloc(0x1000, 1))
        self.assertIn("nonsense", self.fail_with("replay", path, "--on", "nonsense"))
        self.assertIn("align", self.fail_with("replay", path, "--on", "cpu:align=3"))


if __name__ == "__main__":
    unittest.main()
