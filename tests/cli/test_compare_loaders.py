"""bench/compare_loaders.py, with stand-ins for PyTorch and safetensors: what it says and checks. No
figure of these runs means anything.
"""

import os
import subprocess
import sys
import unittest

from support.program import PROGRAM, ProgramTest

SCRIPT = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "compare_loaders.py"
)

TORCH = '''
import pickle, time
__version__ = "0"
uint8 = "uint8"

class Tensor:
    def __init__(self, data):
        self.data = bytes(data)
    def cuda(self):
        return self
    def cpu(self):
        return self
    def numpy(self):
        return self
    def tobytes(self):
        return self.data
    def copy_(self, other, non_blocking=False):
        return self

def frombuffer(data, dtype):
    return Tensor(data)

def empty(size, dtype, device=None, pin_memory=False):
    return Tensor(b"")

def save(tensors, path):
    with open(path, "wb") as file:
        pickle.dump(dict((name, tensor.data) for name, tensor in tensors.items()), file)

def load(path, mmap, weights_only):
    time.sleep({delay})
    with open(path, "rb") as file:
        return dict((name, Tensor(data)) for name, data in pickle.load(file).items())

class cuda:
    @staticmethod
    def is_available():
        return {available}
    @staticmethod
    def synchronize():
        pass
'''

SAFETENSORS = '''
import json, struct, time
import torch

def load_file(path, device):
    time.sleep({delay})
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    tensors = dict()
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        tensors[name] = torch.Tensor(data[begin:end])
    {spoil}
    return tensors
'''


class CompareLoaders(ProgramTest):
    def compare(self, delay=0.5, available=True, spoil="pass", modules=True):
        if modules:
            self.write("torch.py", TORCH.format(delay=delay, available=available).encode())
            os.mkdir(self.path("safetensors"))
            self.write("safetensors/__init__.py", b"")
            self.write(
                "safetensors/torch.py", SAFETENSORS.format(delay=delay, spoil=spoil).encode()
            )
        work = self.path("work")
        os.mkdir(work)
        result = subprocess.run(
            [sys.executable, "-B", SCRIPT, "--quay", PROGRAM, "--to", "cpu", "--mib", "1",
             "--runs", "1", "--folder", work],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=100, check=False,
            env={**os.environ, "PYTHONPATH": self.path("") if modules else "",
                 "PYTHONNOUSERSITE": "1"},
        )
        self.assertEqual(result.stderr, b"")
        self.assertEqual(os.listdir(work), [])
        return result.returncode, result.stdout.decode()

    def test_slower_loaders_are_beaten_by_what_is_wanted(self):
        # Half a second a call is slow enough for any machine.
        status, output = self.compare()
        self.assertIn(status, (0, 1), output)
        self.assertIn("holds: at least 7 times safetensors load_file", output)
        self.assertIn("holds: at least 5 times torch.load(mmap) and .cuda()", output)
        self.assertIn("2000 tensors of 1 KiB: ", output)
        self.assertIn("page-locked", output)

    def test_wrong_bytes_are_told(self):
        status, output = self.compare(delay=0, spoil="tensors['t0003'] = tensors['t0002']")
        self.assertEqual(status, 2, output)
        self.assertIn("wrong bytes: safetensors load_file", output)

    def test_without_a_device_it_is_skipped(self):
        status, output = self.compare(available=False)
        self.assertEqual((status, output), (77, "skipped: PyTorch finds no CUDA device\n"))


if __name__ == "__main__":
    unittest.main()
