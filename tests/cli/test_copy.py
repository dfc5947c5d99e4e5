"""quay copy, seen from outside."""

import glob
import os
import re
import signal
import subprocess
import tempfile
import time
import unittest

from support.program import (
    PROGRAM, SANITIZED, SIMCUDA, ProgramTest, cached_pages, drop_from_page_cache, has_direct_io,
    pattern,
)

BLOCK = 16 << 20


class Copy(ProgramTest):
    def test_files_of_every_size_around_a_block_arrive_through_every_backend(self):
        for size in (0, 1, 4095, 4097, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 12345):
            data = pattern(size)
            self.write("src", data)
            for via in ("cpu", f"mmap:{self.folder}", "track+cpu"):
                with self.subTest(size=size, via=via):
                    output = self.succeed(
                        "copy", self.path("src"), self.path("dst"), "--via", via, "--no-progress"
                    )
                    self.assertIn(f"through {via}, ", output)
                    self.assertEqual(self.read("dst"), data)
                    self.assertEqual(self.files(), ["dst", "src"])

    def test_direct_io_makes_no_difference_to_the_bytes(self):
        for size in (0, 1, 4097, 300000, BLOCK + 12345):
            for via in ("cpu", f"mmap:{self.folder}"):
                with self.subTest(size=size, via=via):
                    self.write("src", pattern(size))
                    if size:
                        drop_from_page_cache(self.path("src"))
                    self.succeed(
                        "copy", self.path("src"), self.path("dst"), "--via", via, "--direct"
                    )
                    self.assertEqual(self.read("dst"), pattern(size))

    def test_direct_io_leaves_the_page_cache_alone(self):
        source = self.write("src", pattern(2 * BLOCK))
        if not has_direct_io(source) or not drop_from_page_cache(source):
            self.skipTest("the folder's file system has no direct I/O, or is in memory")
        pages = 2 * BLOCK // 4096
        self.succeed("copy", source, self.path("dst"), "--direct")
        self.assertLess(cached_pages(source), pages // 10)
        self.assertEqual(self.read("dst"), pattern(2 * BLOCK))
        self.succeed("copy", source, self.path("dst"))
        # The system may take a few pages away meanwhile.
        self.assertGreater(cached_pages(source), pages - pages // 10)

    def test_direct_io_where_the_file_is_in_memory_is_no_error(self):
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as source:
            source.write(pattern(300000))
            source.flush()
            self.succeed("copy", source.name, self.path("dst"), "--direct")
        self.assertEqual(self.read("dst"), pattern(300000))

    def test_the_environment_names_the_backend(self):
        self.write("src", pattern(100))
        output = self.succeed(
            "copy", self.path("src"), self.path("dst"), env={"QUAY_BACKEND": "track+cpu"}
        )
        self.assertRegex(output, r"^100 bytes through track\+cpu, \d+\.\d{3} s, \d+\.\d{3} GB/s\n$")

    def test_an_existing_file_is_replaced_and_keeps_its_permissions(self):
        self.write("src", pattern(100))
        self.write("dst", b"old and longer than the new one" * 10)
        os.chmod(self.path("dst"), 0o640)
        self.succeed("copy", self.path("src"), self.path("dst"))
        self.assertEqual(self.read("dst"), pattern(100))
        self.assertEqual(os.stat(self.path("dst")).st_mode & 0o7777, 0o640)

    def test_a_file_can_be_copied_onto_itself(self):
        self.write("src", pattern(BLOCK + 5))
        self.succeed("copy", self.path("src"), self.path("src"))
        self.assertEqual(self.read("src"), pattern(BLOCK + 5))

    def test_a_symbolic_link_is_followed(self):
        self.write("src", pattern(100))
        self.write("real", b"old")
        os.symlink("real", self.path("link"))
        self.succeed("copy", self.path("src"), self.path("link"))
        self.assertTrue(os.path.islink(self.path("link")))
        self.assertEqual(self.read("real"), pattern(100))


class Failures(ProgramTest):
    def check(self, source, destination, *parts, **options):
        before = self.files()
        message = self.fail_with("copy", source, destination, **options)
        for part in parts:
            self.assertIn(part, message)
        self.assertEqual(self.files(), before)

    def test_a_source_that_cannot_be_read_is_named_with_the_reason(self):
        os.mkfifo(self.path("fifo"))
        self.check(self.path("missing"), self.path("dst"), self.path("missing"), "ENOENT")
        self.check(self.folder, self.path("dst"), self.folder, "directory")
        self.check(self.path("fifo"), self.path("dst"), "FIFO", timeout=20)

    def test_a_destination_that_cannot_be_written_is_named_with_the_reason(self):
        self.write("src", pattern(100))
        os.mkdir(self.path("folder"))
        os.mkfifo(self.path("fifo"))
        source = self.path("src")
        self.check(source, self.path("folder"), self.path("folder"), "a directory")
        self.check(source, self.path("fifo"), "a FIFO", timeout=20)
        self.check(source, "/dev/full", "a character device")
        self.check(source, self.path("missing/dst"), self.path("missing"), "ENOENT")
        self.check(source, "", "without a file's name")

    def test_a_failed_allocation_leaves_the_old_file(self):
        self.write("src", pattern(100))
        self.write("dst", b"old")
        self.check(self.path("src"), self.path("dst"), "fault", env={"QUAY_BACKEND": "fault:after=0+cpu"})
        self.assertEqual(self.read("dst"), b"old")

    def test_a_file_larger_than_its_limit_leaves_the_old_file(self):
        def limit():
            import resource

            # As a shell would start it; Python ignores the signal.
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

        self.write("src", pattern(BLOCK + 1))
        self.write("dst", b"old")
        self.check(self.path("src"), self.path("dst"), "too large", preexec_fn=limit)
        self.assertEqual(self.read("dst"), b"old")


class Signals(ProgramTest):
    """A signal in the middle takes the temporary file away."""

    def stop_with(self, number):
        source = self.write("src", b"")
        os.truncate(source, 4 << 30)
        with subprocess.Popen(
            [PROGRAM, "copy", source, self.path("dst")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and process.poll() is None:
                if glob.glob(self.path(".quay-*")):
                    break
                time.sleep(0.005)
            process.send_signal(number)
            output, message = process.communicate(timeout=60)
        return process.returncode, output, message.decode()

    def check(self, number):
        self.write("dst", b"old")
        status, output, message = self.stop_with(number)
        self.assertEqual(status, 1, message)
        self.assertEqual(output, b"")
        self.assertEqual(message, f"quay: stopped by signal {int(number)}; nothing was written\n")
        self.assertEqual(self.files(), ["dst", "src"])
        self.assertEqual(self.read("dst"), b"old")

    def test_term_leaves_no_temporary_file(self):
        self.check(signal.SIGTERM)

    def test_interrupt_leaves_no_temporary_file(self):
        self.check(signal.SIGINT)

    def test_quit_leaves_no_temporary_file(self):
        self.check(signal.SIGQUIT)

    def test_the_end_of_processor_time_leaves_no_temporary_file(self):
        self.check(signal.SIGXCPU)

    def test_others_that_end_a_program(self):
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF,
                       signal.SIGIO, signal.SIGPWR):
            with self.subTest(number=number):
                self.check(number)

    def test_hangup_leaves_no_temporary_file(self):
        self.check(signal.SIGHUP)


@unittest.skipIf(SANITIZED, "a sanitizer takes memory of its own")
class Memory(ProgramTest):
    def test_a_large_file_is_copied_in_bounded_memory(self):
        size = (4 << 30) if os.environ.get("QUAY_TEST_FULL") else (300 << 20)
        source = self.write("src", b"")
        os.truncate(source, size)
        environment = {**os.environ, "QUAY_CUDA_LIBRARY": SIMCUDA}
        for via in ("cpu", f"mmap:{self.folder}", *(["cuda:0"] if SIMCUDA else [])):
            with self.subTest(via=via):
                subprocess.run(
                    [
                        os.environ["QUAY_PEAK_MEMORY"],
                        self.path("peak"),
                        PROGRAM,
                        "copy",
                        source,
                        self.path("dst"),
                        "--via",
                        via,
                    ],
                    stdout=subprocess.DEVNULL,
                    check=True,
                    env=environment,
                )
                self.assertEqual(os.path.getsize(self.path("dst")), size)
                self.assertLess(int(self.read("peak")), 100 * 1024, "KiB")


class Truncation(ProgramTest):
    def test_a_source_cut_off_while_it_is_copied_is_an_io_error(self):
        source = self.write("src", b"")
        os.truncate(source, 4 << 30)
        with subprocess.Popen(
            [PROGRAM, "copy", source, self.path("dst")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process:
            while process.poll() is None and not glob.glob(self.path(".quay-*")):
                time.sleep(0.005)
            os.truncate(source, 4096)
            message = process.communicate(timeout=60)[1].decode()
        self.assertEqual(process.returncode, 1, message)
        self.assertTrue(re.match(r"quay: [^\n]*\n\Z", message), message)
        self.assertEqual(self.files(), ["src"])


if __name__ == "__main__":
    unittest.main()
