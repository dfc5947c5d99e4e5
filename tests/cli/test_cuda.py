"""The program on CUDA: on a simulated driver, and where there is none, which it has to explain.

QUAY_SIM_CUDA is the simulated driver's library; "": the backend is not built in. What the simulator
reports at exit ends the program with another status than the tests expect.
"""

import hashlib
import json
import os
import unittest

from support.program import DATA, ProgramTest, drop_from_page_cache, pattern, run, safetensors

SIMULATED = os.environ["QUAY_SIM_CUDA"]
MIXED = os.path.join(DATA, "mixed.safetensors")
SPECS = (
    "cuda:0",
    "cuda:1",
    "cuda:0,memory=pinned",
    "cuda:0,memory=managed",
    "track+cuda:0",
)
# Sizes around the pieces in which the backend copies.
SIZES = (0, 1, 65536, 65537, (4 << 20) + 1, (20 << 20) + 12345)


def driver(**settings):
    """The environment of a simulated driver."""
    return {"QUAY_CUDA_LIBRARY": SIMULATED, "SIMCUDA_STRICT": "1", **settings}


@unittest.skipUnless(SIMULATED, "the backend is not built in")
class Simulated(ProgramTest):
    def test_a_file_of_the_reference_library_loads_bit_by_bit(self):
        with open(os.path.join(DATA, "mixed.json"), encoding="utf-8") as file:
            expected = {name: tensor["sha256"] for name, tensor in json.load(file).items()}
        for spec in SPECS:
            with self.subTest(spec=spec):
                output = self.succeed(
                    "load", MIXED, "--to", spec, "--json", "--sha256", env=driver()
                )
                result = json.loads(output)
                self.assertEqual(
                    {t["name"]: t["sha256"] for t in result["tensors"]}, expected
                )

    def test_tensors_of_every_size_around_a_piece_arrive(self):
        tensors = [(f"t{i}", "U8", [n], pattern(n, i)) for i, n in enumerate(SIZES)]
        path = self.write("f", safetensors(tensors))
        output = self.succeed("load", path, "--to", "cuda:0", "--json", "--sha256", env=driver())
        digests = {t["name"]: t["sha256"] for t in json.loads(output)["tensors"]}
        for name, _, _, data in tensors:
            self.assertEqual(digests[name], hashlib.sha256(data).hexdigest(), name)

    def test_direct_io_makes_no_difference(self):
        tensors = [("a", "U8", [77], pattern(77)),
                   ("b", "U8", [(12 << 20) + 5], pattern((12 << 20) + 5, 9))]
        path = self.write("f", safetensors(tensors))
        for warm in (False, True):
            with self.subTest(warm=warm):
                if not warm:
                    drop_from_page_cache(path)
                output = self.succeed(
                    "load", path, "--to", "cuda:0", "--json", "--sha256", "--direct", env=driver()
                )
                self.assertEqual(
                    [t["sha256"] for t in json.loads(output)["tensors"]],
                    [hashlib.sha256(data).hexdigest() for *_, data in tensors],
                )

    def test_the_environment_names_the_device(self):
        output = self.succeed("load", MIXED, "--json", env=driver(QUAY_BACKEND="cuda:1"))
        self.assertEqual(json.loads(output)["backend"], "cuda:1")

    def test_files_of_every_size_around_a_piece_are_copied_through_every_kind_of_memory(self):
        for size in SIZES:
            data = pattern(size)
            self.write("src", data)
            for spec in SPECS:
                with self.subTest(size=size, spec=spec):
                    output = self.succeed(
                        "copy", self.path("src"), self.path("dst"), "--via", spec, "--no-progress",
                        env=driver(),
                    )
                    self.assertIn(f"through {spec}, ", output)
                    self.assertEqual(self.read("dst"), data)

    def test_the_list_of_devices_has_them_all(self):
        result = json.loads(self.succeed("devices", "--json", env=driver(SIMCUDA_DEVICES="3")))
        cuda = next(b for b in result["backends"] if b["name"] == "cuda")
        self.assertTrue(cuda["available"])
        self.assertEqual(cuda["reason"], "")
        self.assertEqual([d["spec"] for d in cuda["devices"]], ["cuda:0", "cuda:1", "cuda:2"])
        table = self.succeed("devices", env=driver())
        self.assertIn("cuda:1", table)
        self.assertNotIn("cuda:2", table)

    def test_out_of_device_memory_is_a_failure_that_tells_how_much_there_is(self):
        path = self.write("f", safetensors([("t", "U8", [9 << 20], pattern(9 << 20))]))
        message = self.fail_with(
            "load", path, "--to", "cuda:0", env=driver(SIMCUDA_MEMORY=str(8 << 20))
        )
        self.assertIn("of its 8388608 bytes are free", message)

    def test_a_copy_through_a_device_that_is_lost_leaves_no_file(self):
        self.write("src", pattern(9 << 20))
        result = run(
            "copy", self.path("src"), self.path("dst"), "--via", "cuda:0", "--no-progress",
            env=driver(SIMCUDA_FAIL="cuMemcpyDtoHAsync_v2:1:700"),
        )
        lines = result.stderr.decode().splitlines()
        self.assertEqual(result.returncode, 1)
        self.assertEqual(len(lines), 2, "the loss is logged, and is the error")
        for line in lines:
            self.assertIn("start a new process", line)
        self.assertEqual(self.files(), ["src"])


class Unavailable(ProgramTest):
    """Where there is no CUDA, everything else works, and the reason is told."""

    def check(self, text, **environment):
        result = json.loads(self.succeed("devices", "--json", env=environment))
        cuda = next(b for b in result["backends"] if b["name"] == "cuda")
        self.assertFalse(cuda["available"])
        self.assertEqual(cuda["devices"], [])
        self.assertIn(text, cuda["reason"])
        self.assertIn(text, self.succeed("devices", env=environment))
        message = self.fail_with("load", MIXED, "--to", "cuda:0", env=environment)
        self.assertIn(text, message)
        self.succeed("load", MIXED, "--to", "cpu", env=environment)

    @unittest.skipIf(SIMULATED, "the backend is built in")
    def test_a_library_without_the_backend_says_so(self):
        self.check("not built into this library")

    @unittest.skipUnless(SIMULATED, "the backend is not built in")
    def test_a_library_that_cannot_be_loaded_is_named(self):
        self.check(
            'QUAY_CUDA_LIBRARY names "/nowhere/libcuda.so.1"',
            QUAY_CUDA_LIBRARY="/nowhere/libcuda.so.1",
        )

    @unittest.skipUnless(SIMULATED, "the backend is not built in")
    def test_every_state_of_the_driver_has_its_own_message(self):
        states = (
            ("is too old: it is made for CUDA 10.2", {"SIMCUDA_MODE": "old"}),
            ("but no device of it", {"SIMCUDA_MODE": "no_device"}),
            ("look at CUDA_VISIBLE_DEVICES", {"SIMCUDA_MODE": "no_devices"}),
            ("no permission to use the CUDA devices", {"SIMCUDA_MODE": "not_permitted"}),
            ("has no function cuMemcpyAsync", {"SIMCUDA_MISSING": "cuMemcpyAsync"}),
            (
                "has no function cuMemcpyAsync",
                {"SIMCUDA_MISSING": "cuMemcpyAsync", "SIMCUDA_ABSENT": "success"},
            ),
            ("stub library", {"SIMCUDA_MODE": "stub"}),
            ("of different versions", {"SIMCUDA_MODE": "mismatch"}),
            ("can't be started: error 999", {"SIMCUDA_MODE": "unknown"}),
        )
        for text, settings in states:
            with self.subTest(text=text, **settings):
                self.check(text, **driver(**settings))


if __name__ == "__main__":
    unittest.main()
