"""scripts/folder_run, with stand-ins for the programs of the folder and for compute-sanitizer: what it
runs, counts and tells.
"""

import os
import re
import shutil
import subprocess
import unittest

from support.program import ProgramTest

SOURCE = os.environ["QUAY_SOURCE_DIR"]
SANITIZER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "support")
SPECS = ["cuda:0"]

# Says much, in pieces, so that the output of two at a time would be mixed if it could be.
CHATTER = 'for i in 1 2 3; do printf "%s says %d\\n" "$*" "$i"; sleep 0.002; done\n'
TEST_GPU = """
if [[ $1 == --list ]]; then
  printf 'gpu_copy/one\\ngpu_copy/two\\ngpu_lifetime/one\\ngpu_memory/one\\ngpu_stream/one\\ngpu_processes/one\\n'
  exit
fi
""" + CHATTER + """
[[ "$*" != *"${FAKE_FAILS:-nothing}"* ]] || { printf '1 passed, 1 failed\\n'; exit 1; }
printf '2 passed, 0 failed\\n'
"""
GPU_CHILD = """
if [[ $1 == --list ]]; then
  printf 'early_exit\\ntrap\\nfork_child\\n'
  exit
fi
""" + CHATTER
PROGRAMS = {
    "test_gpu": TEST_GPU,
    "gpu_child": GPU_CHILD,
    "test_contract": 'printf "%s, %s\\n" "$QUAY_TEST_SPEC" "${QUAY_TEST_PEER:-none}"\n' + CHATTER,
    "quay": CHATTER,
    "digits": CHATTER,
    "digits_cuda": CHATTER,
}
# Four suites, a scenario, the contract suite with four directions of copies, load, copy and digits for
# each spec, and digits_cuda.
COUNT = 4 + 1 + len(SPECS) * (1 + 4 + 3) + 1


class FolderRun(ProgramTest):
    def setUp(self):
        super().setUp()
        shutil.copy(os.path.join(SOURCE, "scripts", "folder_run"), self.path("run"))
        for name, text in PROGRAMS.items():
            self.program(name, text)
        os.mkdir(self.path("out"))

    def program(self, name, text):
        os.chmod(self.write(name, b"#!/usr/bin/env bash\n" + text.encode()), 0o755)

    def run_folder(self, *selections, specs=SPECS, **environment):
        """The status, and the lines of the summary."""
        path = f"{SANITIZER}:{os.environ['PATH']}"
        done = subprocess.run(
            [self.path("run"), *selections, "--", *specs],
            env={**os.environ, "PATH": path, "OUT": self.path("out"),
                 "COPY_BYTES": "1000", **environment},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=250, check=False,
        )
        self.assertEqual(done.stderr, b"")
        return done.returncode, self.read("out/summary.txt").decode().splitlines()

    def end_of(self, lines):
        """The last line without its time."""
        return re.sub(r" \(\d+ s\)$", "", lines[-1])


class Memcheck(FolderRun):
    def check_counts(self, lines, passed, failed, errors, unfinished):
        self.assertEqual(
            lines[-2],
            f"memcheck: {COUNT} programs, {errors} errors reported, {unfinished} without a count",
        )
        self.assertEqual(
            self.end_of(lines), f"{passed} passed, {failed} failed, 0 floors missed"
        )

    def blocks(self):
        """The log's checks by name, each a whole: the header, the output, the status."""
        found = re.findall(
            r"^=== (memcheck [^\n]*?): [^\n]*\n(.*?)^=== status (\d+)\n\n",
            self.read("out/log.txt").decode(), re.MULTILINE | re.DOTALL,
        )
        return {name: (text, int(status)) for name, text, status in found}

    def test_programs_without_errors_pass_and_are_counted(self):
        status, lines = self.run_folder("memcheck")
        self.assertEqual(status, 0, lines)
        self.check_counts(lines, COUNT, 0, 0, 0)

    def test_deliberate_faults_and_forks_stay_out(self):
        self.run_folder("memcheck")
        names = self.blocks().keys()
        self.assertIn("memcheck early_exit", names)
        self.assertFalse([n for n in names if re.search("trap|fork|gpu_processes", n)])

    def test_errors_are_summed_and_fail_their_programs(self):
        status, lines = self.run_folder("memcheck", FAKE_ERRORS="gpu_copy/*")
        self.assertEqual(status, 1)
        self.check_counts(lines, COUNT - 1, 1, 3, 0)
        self.assertTrue([l for l in lines if l.startswith("FAILED  memcheck gpu_copy: status 9")])
        self.assertIn("========= Invalid __global__ read of size 4 bytes", lines)

    def test_errors_of_several_programs_are_added_up_whatever_the_jobs(self):
        for jobs in ("1", "3"):
            with self.subTest(jobs=jobs):
                status, lines = self.run_folder(
                    "memcheck", FAKE_ERRORS="pairs/*", MEMCHECK_JOBS=jobs
                )
                self.assertEqual(status, 1)
                self.check_counts(lines, COUNT - 4, 4, 12, 0)

    def test_a_tool_that_ends_without_a_count_is_one_failure(self):
        for jobs in ("1", "4"):
            with self.subTest(jobs=jobs):
                status, lines = self.run_folder(
                    "memcheck", FAKE_CRASH="early_exit", MEMCHECK_JOBS=jobs
                )
                self.assertEqual(status, 1)
                self.check_counts(lines, COUNT - 1, 1, 0, 1)

    def test_a_program_that_fails_under_the_tool_fails(self):
        status, lines = self.run_folder("memcheck", FAKE_FAILS="gpu_copy")
        self.assertEqual(status, 1)
        self.check_counts(lines, COUNT - 1, 1, 0, 0)

    def test_what_the_tool_makes_wait_does_not_count(self):
        status, lines = self.run_folder("memcheck", FAKE_FAILS="gpu_lifetime")
        self.assertEqual(status, 0)
        self.check_counts(lines, COUNT - 1, 0, 0, 0)

    def test_errors_of_what_the_tool_makes_wait_count(self):
        status, lines = self.run_folder(
            "memcheck", FAKE_FAILS="gpu_lifetime", FAKE_ERRORS="gpu_lifetime"
        )
        self.assertEqual(status, 1)
        self.check_counts(lines, COUNT - 1, 1, 3, 0)

    def test_one_program_runs_at_a_time_by_default(self):
        self.run_folder("memcheck", FAKE_RECORD=self.path("record"))
        words = [line.split()[0] for line in self.read("record").decode().splitlines()]
        self.assertEqual(words, ["begin", "end"] * COUNT)

    def test_as_many_run_at_a_time_as_are_asked_for_and_no_more(self):
        self.run_folder("memcheck", FAKE_RECORD=self.path("record"), FAKE_MEET="4", MEMCHECK_JOBS="4")
        running, most = 0, 0
        for line in self.read("record").decode().splitlines():
            running += 1 if line.startswith("begin") else -1
            most = max(most, running)
        self.assertEqual((running, most), (0, 4))

    def test_nothing_runs_beside_the_suite_that_looks_at_the_devices_memory(self):
        self.run_folder("memcheck", FAKE_RECORD=self.path("record"), MEMCHECK_JOBS="4")
        running, seen = 0, 0
        for line in self.read("record").decode().splitlines():
            if "gpu_memory/*" in line:
                seen += 1
                self.assertEqual(running, 0 if line.startswith("begin") else 1, line)
            running += 1 if line.startswith("begin") else -1
        self.assertEqual(seen, 2)

    def test_the_log_has_each_program_whole_and_all_that_one_at_a_time_has(self):
        self.run_folder("memcheck")
        alone = self.blocks()
        self.assertEqual(len(alone), COUNT)
        self.run_folder("memcheck", MEMCHECK_JOBS="5")
        together = self.blocks()
        # Paths of temporary folders, and the number of a job, differ from run to run.
        def plain(blocks):
            return {re.sub(r"/\S+", "X", name): (re.sub(r"/\S+", "X", text), status)
                    for name, (text, status) in blocks.items()}
        self.assertEqual(plain(alone), plain(together))

    def test_the_specs_reach_their_programs_whatever_the_jobs(self):
        specs = ["cuda:0", "track+cuda:0"]
        self.run_folder("memcheck", specs=specs, MEMCHECK_JOBS="6")
        blocks = self.blocks()
        for spec in specs:
            self.assertIn(f"{spec}, none\n", blocks[f"memcheck contract {spec}"][0])
            self.assertIn(f"{spec}, cpu\n", blocks[f"memcheck pairs cpu to {spec}"][0])
            self.assertIn(f"cpu, {spec}\n", blocks[f"memcheck pairs {spec} to cpu"][0])

    def test_a_number_of_jobs_that_is_none_is_a_failure(self):
        for jobs in ("0", "-1", "two", "1.5"):
            with self.subTest(jobs=jobs):
                status, lines = self.run_folder("memcheck", MEMCHECK_JOBS=jobs)
                self.assertEqual(status, 1)
                self.assertIn(f"MEMCHECK_JOBS is '{jobs}'", lines[0])

    def test_a_program_that_does_not_end_is_stopped(self):
        self.program("digits_cuda", "exec sleep 60\n")
        status, lines = self.run_folder("memcheck", MEMCHECK_LIMIT="6", MEMCHECK_JOBS="4")
        self.assertEqual(status, 1)
        self.check_counts(lines, COUNT - 1, 1, 0, 1)
        self.assertTrue([l for l in lines if "digits_cuda: no end after 6 s" in l], lines)


class Figures(FolderRun):
    def test_missed_floors_are_counted_apart_from_failures(self):
        self.program("bench_cuda", "echo 'one; MISSED'; echo 'two; good'; echo 'three; MISSED'; exit 3\n")
        status, lines = self.run_folder("bench")
        self.assertEqual(status, 3)
        self.assertEqual(self.end_of(lines), "0 passed, 0 failed, 2 floors missed")
        self.assertIn(b"two; good", self.read("out/bench.txt"))

    def test_without_a_vulkan_device_nothing_fails(self):
        self.program("bench_vulkan", "echo 'no Vulkan device' >&2; exit 77\n")
        status, lines = self.run_folder("vulkan")
        self.assertEqual(status, 0)
        self.assertEqual(lines[0], "skipped vulkan: no Vulkan device")
        self.assertEqual(self.end_of(lines), "0 passed, 0 failed, 0 floors missed")

    def test_with_a_vulkan_device_the_matrix_follows(self):
        self.program("bench_vulkan", "echo '2 GB/s'\n")
        status, lines = self.run_folder("vulkan")
        self.assertEqual(status, 0)
        self.assertIn("2 GB/s", lines)
        self.assertIn("matrix --between cpu,mapping,cuda:0,vulkan:0 --size 512MiB says 3", lines)
        self.assertEqual(self.end_of(lines), "2 passed, 0 failed, 0 floors missed")

    def test_the_pool_is_compared_replayed_and_given_random_shapes(self):
        for name in ("python", "data", "data/traces"):
            os.mkdir(self.path(name))
        self.write("data/traces/small.csv.gz", b"")
        self.write("python/pool_gpu_compare.py", b"import sys\nprint('compared', sys.argv[1:3])\n")
        self.program("bench_cuda", 'echo "bench_cuda $*"\n')
        status, lines = self.run_folder("pool")
        self.assertEqual(status, 0, lines)
        self.assertTrue([l for l in lines if l.startswith("compared ['--quay',")])
        for spec in ("pool+cuda:0", "pool:keep=tight+cuda:0", "cuda:0"):
            self.assertIn(f"replay data/traces/small.csv.gz --on {spec} says 1", lines)
        self.assertTrue([l for l in lines if l.startswith("bench_cuda --only random")])
        self.assertEqual(self.end_of(lines), "5 passed, 0 failed, 0 floors missed")

    def test_the_help_names_every_selection(self):
        done = subprocess.run(
            [self.path("run"), "--help"], stdout=subprocess.PIPE, check=True, timeout=250
        )
        text = self.read("run").decode()
        names = re.search(r"^all=\((.*)\)$", text, re.MULTILINE).group(1).split()
        for name in names:
            self.assertRegex(done.stdout.decode(), rf"(?m)^  {name} ")
            self.assertIn(f"\nrun_{name}() {{", text)


class Cold(FolderRun):
    def test_a_cold_file_is_read_into_memory_and_to_the_first_device(self):
        self.program("bench_cold", 'printf "measured %s\\n" "$*"\n')
        status, lines = self.run_folder(
            "cold", specs=["cuda:1", "cpu"], COLD_DIRECTORY="/disk", COLD_ARGUMENTS="--rounds 7"
        )
        self.assertEqual(status, 0, lines)
        told = [line for line in lines if line.startswith("measured ")]
        self.assertEqual(len(told), 2, lines)
        for line in told:
            self.assertIn("--directory /disk ", line)
            self.assertTrue(line.endswith(" --rounds 7"), line)
        self.assertNotIn("--to", told[0])
        self.assertIn("--to cuda:1 ", told[1])


if __name__ == "__main__":
    unittest.main()
