"""Options, help, exit status and output of the program, whatever the command."""

import json
import os
import re
import subprocess
import unittest

from support.program import DATA, PROGRAM, ProgramTest, run, safetensors

MIXED = os.path.join(DATA, "mixed.safetensors")
TRACE = os.path.join(DATA, "traces", "two_stream.csv.gz")
COMMANDS = ("devices", "load", "copy", "replay", "matrix")
NAMES = ("track", "fault", "cpu", "mmap", "cuda", "vulkan")
CPU_TAKES = ("cpu takes", "align=", "hugepages=")
WRONG_BACKENDS = {
    "nonsense": ("nonsense", *NAMES),
    "cpu:": ("cpu:", "an argument is empty", *CPU_TAKES),
    "cpu:align=64,": ("an argument is empty", *CPU_TAKES),
    "cpu:,align=64": ("an argument is empty", *CPU_TAKES),
    "cpu:alig=64": ("alig=64", *CPU_TAKES),
    "cpu:64": ("64", *CPU_TAKES),
    "cpu:align=1,align=2": ("align=2", "twice", *CPU_TAKES),
    "cpu:align=3": ("align=3", "power of two from 1 to 1GiB"),
    "cpu:align=x": ("align=", "a size in bytes, such as"),
    "cpu:align=": ("align=", "value", *CPU_TAKES),
    "cpu:hugepages=": ("hugepages=", "value", *CPU_TAKES),
    "cpu:hugepages=1": ("hugepages=", "on or off"),
    "mmap": ("a directory", "mmap:/scratch"),
    "mmap:": ("an argument is empty", "mmap takes (a directory)"),
    "mmap:/tmp,/var": ("/var", "mmap takes (a directory)"),
    "track:+cpu": ("an argument is empty", "track takes nothing"),
    "track:x+cpu": ("x", "track takes nothing"),
    "fault:+cpu": ("an argument is empty", "fault takes", "after="),
    "pool+": ("pool", *NAMES),
    "+cpu": ("name", *NAMES),
    "mmap:/does/not/exist": ("/does/not/exist", "ENOENT"),
    "cuda:99": ("cuda:99",),
    " cpu": (" cpu", *NAMES),
    "cpu ": ("cpu ", *NAMES),
    "": NAMES,
    "track": NAMES,
    "track+": NAMES,
    "cpu+track": ("cpu+track", "left", *NAMES),
}


class Usage(ProgramTest):
    def test_help_lists_every_command(self):
        for option in ("--help", "-h"):
            output = self.succeed(option)
            for command in COMMANDS:
                self.assertIn(command, output)

    def test_help_of_each_command_names_its_options(self):
        options = {
            "devices": ["--json"],
            "load": ["--to", "--json", "--sha256", "--direct", "--no-progress"],
            "copy": ["--via", "--direct", "--no-progress"],
            "replay": ["--on", "--touch", "--json"],
            "matrix": ["--between", "--size", "--json", "--svg"],
        }
        for command in COMMANDS:
            for option in ("--help", "-h"):
                output = self.succeed(command, option)
                self.assertIn(f"usage: quay {command}", output)
                for name in options[command]:
                    self.assertIn(name, output)

    def test_version_is_that_of_the_header(self):
        with open(os.path.join(os.environ["QUAY_SOURCE_DIR"], "include/quay/version.h")) as file:
            numbers = re.findall(r"^#define QUAY_VERSION_[A-Z]+ +(\d+)$", file.read(), re.M)
        for option in ("--version", "-V"):
            self.assertEqual(self.succeed(option), f"quay {'.'.join(numbers)}\n")

    def test_no_command_is_misuse(self):
        self.assertIn("no command", self.misuse())

    def test_unknown_commands_and_options_are_misuse(self):
        self.assertIn("'frobnicate'", self.misuse("frobnicate"))
        self.assertIn("'--frobnicate'", self.misuse("--frobnicate"))
        for command in COMMANDS:
            self.assertIn("'--frobnicate'", self.misuse(command, "--frobnicate"))
            self.assertIn("'-x'", self.misuse(command, "-x"))

    def test_an_option_without_its_value_is_misuse(self):
        self.assertIn("'--to'", self.misuse("load", MIXED, "--to"))
        self.assertIn("'--via'", self.misuse("copy", MIXED, "x", "--via"))
        self.assertIn("'--on'", self.misuse("replay", TRACE, "--on"))

    def test_a_value_for_an_option_without_one_is_misuse(self):
        self.assertIn("'--json=1'", self.misuse("load", MIXED, "--json=1"))

    def test_missing_and_surplus_arguments_are_misuse(self):
        self.misuse("load")
        self.misuse("copy")
        self.misuse("copy", MIXED)
        self.misuse("replay")
        self.assertIn("'b'", self.misuse("replay", "a", "b"))
        self.assertIn("'b'", self.misuse("load", "a", "b"))
        self.assertIn("'c'", self.misuse("copy", "a", "b", "c"))
        self.assertIn("'a'", self.misuse("devices", "a"))
        self.assertIn("'a'", self.misuse("matrix", "a"))

    def test_options_may_follow_and_precede_the_file(self):
        for arguments in (["--json", MIXED], [MIXED, "--json"], ["--json", "--", MIXED]):
            json.loads(self.succeed("load", *arguments))

    def test_a_message_with_control_characters_is_one_harmless_line(self):
        for arguments in (("load", "/nowhere/\x1b[31m\nname"), ("load", "--to", "\x1b[31m\n", MIXED)):
            message = self.fail_with(*arguments)
            self.assertNotIn("\x1b", message)


class Output(ProgramTest):
    """Output that is lost is a failure."""

    def commands(self):
        return (
            ("--help",),
            ("--version",),
            ("load", "--help"),
            ("devices",),
            ("devices", "--json"),
            ("load", MIXED),
            ("load", MIXED, "--json"),
            ("copy", MIXED, self.path("out")),
            ("replay", TRACE, "--on", "cpu"),
            ("replay", TRACE, "--on", "cpu", "--json"),
            ("matrix", "--between", "cpu", "--size", "1000"),
            ("matrix", "--between", "cpu", "--size", "1000", "--json"),
        )

    def test_a_full_disk_is_a_failure(self):
        for arguments in self.commands():
            with open("/dev/full", "wb") as full:
                message = self.fail_with(*arguments, stdout=full)
            self.assertIn("No space left", message, arguments)

    def test_a_closed_output_is_a_failure_and_no_file_takes_its_place(self):
        for arguments in self.commands():
            message = self.fail_with(*arguments, stdout=None, preexec_fn=lambda: os.close(1))
            self.assertIn("cannot write the output", message, arguments)
        with open(MIXED, "rb") as file:
            self.assertEqual(self.read("out"), file.read())

    def test_a_reader_that_went_away_is_a_quiet_failure(self):
        for arguments in self.commands():
            reader, writer = os.pipe()
            os.close(reader)
            result = run(*arguments, stdout=writer)
            os.close(writer)
            self.assertEqual((result.returncode, result.stderr), (1, b""), arguments)

    def test_a_reader_of_the_first_line_ends_the_program_quietly(self):
        # More than a pipe holds.
        tensors = [(f"tensor.number.{i}", "U8", [1], b"x") for i in range(5000)]
        path = self.write("f", safetensors(tensors))
        for option in ("--json", "--sha256"):
            with subprocess.Popen(
                [PROGRAM, "load", path, option], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as process:
                self.assertTrue(process.stdout.readline())
                process.stdout.close()
                message = process.stderr.read()
                self.assertEqual((process.wait(), message), (1, b""), option)
        self.assertEqual(self.files(), ["f"])


class Backends(ProgramTest):
    """A backend that can't be had as it is written is an error, and nothing else is taken."""

    def check(self, message, parts):
        for part in parts:
            self.assertIn(part, message)

    def test_load_refuses_each_wrong_backend_of_the_environment(self):
        for spec, parts in WRONG_BACKENDS.items():
            with self.subTest(spec=spec):
                message = self.fail_with("load", MIXED, env={"QUAY_BACKEND": spec})
                self.check(message, (*parts, "QUAY_BACKEND"))

    def test_copy_refuses_each_wrong_backend_of_the_environment(self):
        for spec, parts in WRONG_BACKENDS.items():
            with self.subTest(spec=spec):
                out = self.path("out")
                message = self.fail_with("copy", MIXED, out, env={"QUAY_BACKEND": spec})
                self.check(message, (*parts, "QUAY_BACKEND"))
                self.assertEqual(self.files(), [])

    def test_load_refuses_each_wrong_backend_of_the_option(self):
        for spec, parts in WRONG_BACKENDS.items():
            with self.subTest(spec=spec):
                message = self.fail_with("load", MIXED, "--to", spec)
                self.check(message, parts)
                self.assertNotIn("QUAY_BACKEND", message)

    def test_the_option_wins_over_the_environment(self):
        output = self.succeed(
            "load", MIXED, "--to", "cpu", "--json", env={"QUAY_BACKEND": "nonsense"}
        )
        self.assertEqual(json.loads(output)["backend"], "cpu")

    def test_the_environment_names_the_backend(self):
        output = self.succeed("load", MIXED, "--json", env={"QUAY_BACKEND": "track+cpu"})
        self.assertEqual(json.loads(output)["backend"], "track+cpu")


class Devices(ProgramTest):
    def test_json_has_every_backend_in_order(self):
        backends = json.loads(self.succeed("devices", "--json"))["backends"]
        self.assertEqual([b["name"] for b in backends][:4], ["cpu", "mmap", "cuda", "vulkan"])
        for backend in backends:
            self.assertEqual(set(backend), {"name", "available", "reason", "devices"})
            self.assertEqual(backend["available"], bool(backend["devices"]))
            self.assertEqual(backend["available"], backend["reason"] == "", backend)

    def test_json_tells_the_memory_of_the_host(self):
        cpu = json.loads(self.succeed("devices", "--json"))["backends"][0]["devices"]
        self.assertEqual(len(cpu), 1)
        self.assertEqual(
            set(cpu[0]), {"spec", "name", "type", "index", "total_bytes", "free_bytes"}
        )
        self.assertEqual((cpu[0]["spec"], cpu[0]["type"], cpu[0]["index"]), ("cpu", "cpu", 0))
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.assertAlmostEqual(cpu[0]["total_bytes"], pages, delta=pages // 20)
        self.assertGreater(cpu[0]["free_bytes"], 0)
        self.assertLessEqual(cpu[0]["free_bytes"], cpu[0]["total_bytes"])

    def test_every_device_can_be_opened(self):
        for backend in json.loads(self.succeed("devices", "--json"))["backends"]:
            for device in backend["devices"]:
                self.succeed("load", MIXED, "--to", device["spec"])

    def test_the_table_has_every_backend_and_its_reason(self):
        output = self.succeed("devices")
        for backend in json.loads(self.succeed("devices", "--json"))["backends"]:
            lines = [line for line in output.splitlines() if line.startswith(backend["name"])]
            self.assertTrue(lines, output)
            self.assertIn(backend["reason"], lines[0])

    def test_a_wrong_default_backend_does_not_hide_the_devices(self):
        run("devices", env={"QUAY_BACKEND": "nonsense"})
        self.succeed("devices", env={"QUAY_BACKEND": "nonsense"})


if __name__ == "__main__":
    unittest.main()
