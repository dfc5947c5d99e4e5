"""What the tests of the program share: running it, and making safetensors files."""

import json
import os
import shutil
import struct
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["QUAY_PROGRAM"]
DATA = os.environ["QUAY_TEST_DATA"]
# The simulated CUDA driver; empty where the backend is not built.
SIMCUDA = os.environ.get("QUAY_SIM_CUDA", "")
SANITIZED = bool(os.environ.get("QUAY_TEST_SANITIZE"))


def run(*arguments, **options):
    """Runs the program; `env` adds to the environment."""
    environment = dict(os.environ)
    environment.update(options.pop("env", {}))
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("timeout", 120)
    return subprocess.run(
        [PROGRAM, *arguments], stderr=subprocess.PIPE, env=environment, check=False, **options
    )


def pattern(size, start=0):
    """Bytes that differ from their neighbours and are never 0."""
    period = bytes(1 + (i * 37 + i // 251) % 255 for i in range(start, start + min(size, 65536)))
    return (period * (size // len(period) + 1))[:size] if size else b""


def safetensors(tensors, metadata=None):
    """The bytes of a file with `tensors`: a list of (name, dtype, shape, bytes)."""
    header, position = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, dtype, shape, data in tensors:
        end = position + len(data)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(data for *_, data in tensors)


class ProgramTest(unittest.TestCase):
    """A test with a folder of its own, and checks of how the program ended."""

    def setUp(self):
        # In the build folder: temporary folders are often in memory, and small.
        self.folder = tempfile.mkdtemp(prefix="cli-", dir=os.getcwd())
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, data):
        with open(self.path(name), "wb") as file:
            file.write(data)
        return self.path(name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def files(self):
        return sorted(os.listdir(self.folder))

    def succeed(self, *arguments, **options):
        result = run(*arguments, **options)
        self.assertEqual(result.returncode, 0, result.stderr.decode(errors="replace"))
        self.assertEqual(result.stderr, b"")
        return result.stdout.decode() if result.stdout is not None else ""

    def fail_with(self, *arguments, **options):
        """Status 1 and one line on stderr, which is given."""
        result = run(*arguments, **options)
        message = result.stderr.decode()
        self.assertEqual(result.returncode, 1, message)
        self.assertEqual(message.count("\n"), 1, f"not one line: {message!r}")
        self.assertTrue(message.startswith("quay: "), message)
        self.assertTrue(message.endswith("\n"), message)
        if result.stdout is not None:
            self.assertEqual(result.stdout, b"", "output of a run that failed")
        return message

    def misuse(self, *arguments):
        """Status 2, a line that says what is wrong, and the usage, which is given with it."""
        result = run(*arguments)
        message = result.stderr.decode()
        self.assertEqual(result.returncode, 2, message)
        self.assertEqual(result.stdout, b"")
        self.assertRegex(message, r"\Aquay: [^\n]+\nusage: quay [^\n]+\n\Z")
        return message
