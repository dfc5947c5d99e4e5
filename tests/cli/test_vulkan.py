"""The program on Vulkan devices: lavapipe, as it is and as a discrete device."""

import json
import os
import unittest

from support.program import DATA, ProgramTest, pattern, run

MIXED = os.path.join(DATA, "mixed.safetensors")
DISCRETE = {"VKSHIM_DISCRETE": "1"}


def devices():
    backends = json.loads(run("devices", "--json").stdout)["backends"]
    return next(b for b in backends if b["name"] == "vulkan")


REASON = devices()["reason"]
REQUIRED = "vulkan" in os.environ.get("QUAY_TEST_FAIL_ON_SKIP", "")


@unittest.skipIf(REASON and not REQUIRED, REASON)
class Vulkan(ProgramTest):
    def test_devices_lists_a_software_device_as_one_that_can_be_opened(self):
        (device,) = devices()["devices"]
        self.assertEqual((device["spec"], device["type"]), ("vulkan:0", "vulkan"))
        self.assertGreater(device["total_bytes"], 0)
        self.assertNotEqual(device["name"], "")

    def test_devices_tells_why_there_is_none(self):
        output = self.succeed(
            "devices", "--json", env={"QUAY_VULKAN_LIBRARY": "/does/not/exist.so"}
        )
        backend = next(b for b in json.loads(output)["backends"] if b["name"] == "vulkan")
        self.assertFalse(backend["available"])
        self.assertIn("QUAY_VULKAN_LIBRARY", backend["reason"])
        self.assertIn("/does/not/exist.so", backend["reason"])

    def test_a_library_that_is_no_loader_is_refused_by_name(self):
        message = self.fail_with(
            "load", MIXED, "--to", "vulkan:0", env={"QUAY_VULKAN_LIBRARY": "libm.so.6"}
        )
        self.assertIn("vkGetInstanceProcAddr", message)

    def test_a_model_is_loaded_to_it(self):
        for settings in ({}, DISCRETE):
            for spec in ("vulkan:0", "track+vulkan:0", "vulkan:0,memory=host"):
                output = self.succeed("load", MIXED, "--to", spec, "--json", env=settings)
                self.assertEqual(json.loads(output)["backend"], spec)

    def test_files_of_every_size_around_a_block_arrive_through_it(self):
        for size in (0, 1, 65535, 65537, (4 << 20) + 1, (9 << 20) + 12345):
            source = self.write("source", pattern(size))
            self.succeed("copy", source, self.path("target"), "--via", "vulkan:0", env=DISCRETE)
            self.assertEqual(self.read("target"), pattern(size), f"{size} bytes")

    def test_every_pair_with_it_is_measured(self):
        places = ("cpu", "mapping", "vulkan:0", "vulkan:0,memory=host")
        settings = {"TMPDIR": self.folder, **DISCRETE}
        between = ("--between", ",".join(places))
        output = self.succeed("matrix", "--json", *between, "--size", "1MiB", env=settings)
        routes = {(p["from"], p["to"]): p["route"] for p in json.loads(output)["pairs"]}
        self.assertEqual(set(routes), {(a, b) for a in places for b in places})
        self.assertEqual(routes["vulkan:0", "vulkan:0"], "within")
        self.assertEqual(routes["cpu", "vulkan:0"], "direct")
        self.assertEqual(routes["mapping", "vulkan:0"], "staged")

    def test_the_environment_names_it_without_a_number(self):
        output = self.succeed("load", MIXED, "--json", env={"QUAY_BACKEND": "vulkan"})
        self.assertEqual(json.loads(output)["backend"], "vulkan:0")


if __name__ == "__main__":
    unittest.main()
