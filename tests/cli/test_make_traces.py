"""bench/make_traces.py: what it writes is a log that `quay replay` takes, the same each time, and a
pool holds little more than is live in it.
"""

import json
import os
import subprocess
import sys
import unittest

from support.program import ProgramTest

SCRIPT = os.path.join(os.environ["QUAY_SOURCE_DIR"], "bench", "make_traces.py")


def make(*arguments):
    return subprocess.run(
        [sys.executable, "-B", SCRIPT, *arguments], capture_output=True, text=True, check=False
    )


class MakeTracesTest(ProgramTest):
    def test_a_log_is_replayed_and_little_more_is_held_than_is_live(self):
        made = make(self.folder, "phases", "llm_contiguous")
        self.assertEqual((made.returncode, made.stderr), (0, ""))
        for name in ("phases", "llm_contiguous"):
            for spec, most in (("pool+cpu", 1.05), ("pool:keep=tight+cpu", 1.02)):
                with self.subTest(name=name, spec=spec):
                    text = self.succeed("replay", self.path(name + ".csv"), "--on", spec, "--json")
                    figures = json.loads(text)
                    self.assertGreater(figures["events"], 50_000)
                    self.assertEqual(figures["failed"], 0)
                    self.assertLess(figures["ratio"], most)
                    said = f"{name}: {figures['events']} events, {figures['peak_live_bytes']} bytes"
                    self.assertIn(said, made.stdout)

    def test_the_same_log_is_written_again(self):
        for folder in ("a", "b"):
            self.assertEqual(make(self.path(folder), "random_4096").returncode, 0)
        self.assertEqual(self.read("a/random_4096.csv"), self.read("b/random_4096.csv"))

    def test_an_unknown_name_is_quoted_and_nothing_is_written(self):
        made = make(self.folder, "phases", "nothing")
        self.assertEqual(made.returncode, 2)
        self.assertIn("no trace is called nothing", made.stderr)
        self.assertEqual(self.files(), [])


if __name__ == "__main__":
    unittest.main()
