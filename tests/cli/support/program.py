"""What the tests of the program share: running it, and making safetensors files."""

import ctypes
import json
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
import time
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
    options.setdefault("timeout", 600 if SANITIZED else 120)
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


def cached_pages(path):
    """How many of the file's pages are in the page cache."""
    with open(path, "rb") as file:
        # A private mapping that may be written to: only of one does ctypes find the address.
        with mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE) as mapped:
            view = ctypes.c_char.from_buffer(mapped)
            pages = (len(mapped) - 1) // mmap.PAGESIZE + 1
            resident = (ctypes.c_ubyte * pages)()
            library = ctypes.CDLL(None, use_errno=True)
            status = library.mincore(
                ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(len(mapped)), resident
            )
            del view
    if status != 0:
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(page & 1 for page in resident)


def drop_from_page_cache(path):
    """Waits until none of the file is there; False where that can't be had, as in memory."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        for _ in range(100):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if cached_pages(path) == 0:
                return True
            time.sleep(0.01)
    return False


def has_direct_io(path):
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


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
