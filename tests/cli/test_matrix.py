"""quay matrix, seen from outside. No figure is judged: the machine may be busy."""

import json
import os
import signal
import subprocess
import time
import unittest
import xml.etree.ElementTree

from support.program import PROGRAM, SIMCUDA, ProgramTest

SIMULATED = {"QUAY_CUDA_LIBRARY": SIMCUDA, "SIMCUDA_STRICT": "1"}


class Matrix(ProgramTest):
    def matrix(self, *arguments, **options):
        options["env"] = {"TMPDIR": self.folder, **options.get("env", {})}
        return json.loads(self.succeed("matrix", "--json", *arguments, **options))

    def check(self, result, size, places):
        self.assertEqual(set(result), {"size", "limits", "pairs"})
        self.assertEqual(result["size"], size)
        pairs = [(pair["from"], pair["to"]) for pair in result["pairs"]]
        self.assertEqual(pairs, [(a, b) for a in places for b in places])
        for pair in result["pairs"]:
            self.assertEqual(set(pair), {"from", "to", "route", "gbps", "limit", "ratio"})
            self.assertIn(pair["route"], ("within", "direct", "staged", "file"))
            self.assertGreater(pair["gbps"], 0)
            if pair["limit"] is not None:
                self.assertIn(pair["limit"], result["limits"].values())
                ratio = pair["gbps"] / pair["limit"]
                self.assertAlmostEqual(pair["ratio"], ratio, delta=1e-7 * ratio)  # nine digits each
        for limit in result["limits"].values():
            self.assertGreater(limit, 0)
        self.assertEqual(self.files(), [], "a temporary file is left")

    def test_every_ordered_pair_is_measured_beside_its_limit(self):
        places = ("cpu", "mapping", f"mmap:{self.folder}", "track+cpu")
        result = self.matrix("--between", ",".join(places), "--size", "3MiB")
        self.check(result, 3 << 20, places)
        self.assertEqual(set(result["limits"]), {"memcpy", "pread", "pwrite"})
        limits = {(p["from"], p["to"]): p["limit"] for p in result["pairs"]}
        self.assertEqual(limits["cpu", "track+cpu"], result["limits"]["memcpy"])
        self.assertEqual(limits["mapping", "cpu"], result["limits"]["pread"])
        self.assertEqual(limits["cpu", "mapping"], result["limits"]["pwrite"])

    def test_all_that_is_available_and_a_mapping_are_measured_by_default(self):
        devices = json.loads(self.succeed("devices", "--json"))
        specs = [d["spec"] for b in devices["backends"] for d in b["devices"]]
        result = self.matrix("--size", "1000")
        self.assertEqual(result["pairs"][0]["from"], "mapping")
        self.assertLessEqual({"mapping", *specs}, {pair["from"] for pair in result["pairs"]})

    @unittest.skipUnless(SIMCUDA, "the cuda backend is not built")
    def test_devices_stand_beside_the_drivers_own_copy(self):
        places = ("cpu", "cuda:0", "cuda:0,memory=pinned", "mapping", "cuda:1")
        result = self.matrix("--between", ",".join(places), "--size", "300KiB", env=SIMULATED)
        self.check(result, 300 << 10, places)
        limits = {(p["from"], p["to"]): p["limit"] for p in result["pairs"]}
        self.assertEqual(limits["mapping", "cuda:0"], result["limits"]["cuda:0 in"])
        self.assertEqual(limits["cuda:1", "cpu"], result["limits"]["cuda:1 out"])
        self.assertIsNone(limits["cuda:0", "cuda:0"])

    def test_a_heat_map_is_well_formed_and_has_a_cell_for_every_pair(self):
        places = ("cpu", "mapping", "mmap:" + self.folder)
        self.succeed(
            "matrix", "--between", ",".join(places), "--size", "5000",
            "--svg", self.path("map.svg"), env={"TMPDIR": self.folder},
        )
        root = xml.etree.ElementTree.fromstring(self.read("map.svg"))
        name = "{http://www.w3.org/2000/svg}"
        self.assertEqual(root.tag, name + "svg")
        self.assertEqual(len(root.findall(name + "rect")), 1 + len(places) ** 2)
        texts = [text.text for text in root.iter(name + "text")]
        for place in places:
            self.assertEqual(texts.count(place), 2)

    def test_a_signal_leaves_no_temporary_file(self):
        """As soon as one has been seen, which has a name for a moment."""
        for number in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP] * 4:
            with subprocess.Popen(
                [PROGRAM, "matrix", "--between", "mapping", "--size", "8MiB"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "TMPDIR": self.folder},
            ) as process:
                deadline = time.monotonic() + 60
                while time.monotonic() < deadline and process.poll() is None and not self.files():
                    pass
                process.send_signal(number)
                self.assertIn(process.wait(timeout=60), (-number, 0))
            self.assertEqual(self.files(), [])

    def test_sizes_are_written_as_in_specs(self):
        for text, size in (("1K", 1024), ("1KB", 1000), ("2KiB", 2048), ("1MB", 10**6), ("7B", 7)):
            result = self.matrix("--between", "cpu", "--size", text)
            self.assertEqual(result["size"], size)

    def test_a_place_that_is_too_small_is_told_before_anything_is_measured(self):
        begin = time.monotonic()
        message = self.fail_with(
            "matrix", "--between", "cpu,limit:1GiB+cpu", "--size", "1GiB", timeout=60
        )
        self.assertIn("limit", message)
        self.assertLess(time.monotonic() - begin, 20)
        # The address space of one TiB may be had, or not: what is certain is the limit.
        self.assertIn("limit", self.fail_with("matrix", "--between", "limit:1MiB+cpu", "--size", "1TiB"))

    def test_what_is_wrong_is_told(self):
        self.assertIn("'0'", self.misuse("matrix", "--size", "0"))
        self.assertIn("'12x'", self.misuse("matrix", "--size", "12x"))
        self.assertIn("1TiB", self.misuse("matrix", "--size", "2TiB"))
        self.assertIn("'99999999999GiB'", self.misuse("matrix", "--size", "99999999999GiB"))
        self.assertIn("nonsense", self.fail_with("matrix", "--between", "cpu,nonsense"))
        no_folder = {"TMPDIR": os.path.join(self.folder, "nowhere")}
        message = self.fail_with("matrix", "--between", "cpu", "--size", "9", env=no_folder)
        self.assertIn("TMPDIR", message)
        self.assertIn(no_folder["TMPDIR"], message)
        svg = os.path.join(self.folder, "nowhere", "map.svg")
        message = self.fail_with("matrix", "--between", "cpu", "--size", "9", "--svg", svg)
        self.assertIn("No such file", message)
        self.assertEqual(os.listdir(self.folder), [])
        os.mkfifo(self.path("fifo"))
        message = self.fail_with("matrix", "--between", "cpu", "--svg", self.path("fifo"), timeout=60)
        self.assertIn("FIFO", message)
        self.assertIn("a directory", self.fail_with("matrix", "--svg", self.folder))
        message = self.misuse("matrix", "--svg", "-")
        self.assertIn("./-", message)


if __name__ == "__main__":
    unittest.main()
