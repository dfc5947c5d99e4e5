"""quay load, seen from outside."""

import filecmp
import hashlib
import json
import os
import pty
import struct
import subprocess
import unicodedata
import unittest

from support.program import (
    DATA, PROGRAM, SANITIZED, SIMCUDA, ProgramTest, cached_pages, drop_from_page_cache,
    has_direct_io, pattern, safetensors,
)

MIXED = os.path.join(DATA, "mixed.safetensors")
TARGETS = ("cpu", "cpu:align=4096", "mmap:{folder}", "track+cpu", "track+mmap:{folder}")

DTYPES = {
    "torch.bool": "BOOL",
    "torch.uint8": "U8",
    "torch.int8": "I8",
    "torch.int16": "I16",
    "torch.int32": "I32",
    "torch.int64": "I64",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.float32": "F32",
    "torch.float64": "F64",
    "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
    "torch.complex64": "C64",
}


@unittest.skipIf(SANITIZED or not SIMCUDA, "a sanitizer takes memory of its own")
class Memory(ProgramTest):
    """Peaks above those of a program that only opens the device. Memory of the simulated device is
    not resident in the process, as that of a real one is not."""

    def peak(self, *arguments):
        environment = {
            **os.environ,
            "QUAY_CUDA_LIBRARY": SIMCUDA,
            "QUAY_COPY_THREADS": "8",
            "SIMCUDA_RESIDENT": "0",
        }
        with open(self.path("out"), "wb") as out:
            subprocess.run(
                [os.environ["QUAY_PEAK_MEMORY"], self.path("peak"), PROGRAM, *arguments],
                stdout=out,
                check=True,
                env=environment,
            )
        return int(self.read("peak"))

    def model(self, size):
        """A file of one tensor: random pieces, and holes between them. Its digest, too."""
        header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
        path = self.write("model", struct.pack("<Q", len(header)) + header.encode())
        digest, hole, part = hashlib.sha256(), bytes(24 << 20), 8 << 20
        with open(path, "r+b") as file:
            file.seek(0, os.SEEK_END)
            left = size
            while left > 0:
                piece = os.urandom(min(part, left))
                skipped = min(len(hole), left - len(piece))
                file.write(piece)
                file.seek(skipped, os.SEEK_CUR)
                digest.update(piece)
                digest.update(memoryview(hole)[:skipped])
                left -= len(piece) + skipped
            file.truncate()
        return path, digest.hexdigest()

    def check(self, size):
        path, digest = self.model(size)
        opened = self.peak("load", MIXED, "--to", "cuda:0")
        loaded = self.peak("load", path, "--to", "cuda:0", "--json", "--sha256")
        result = json.loads(self.read("out"))
        self.assertEqual(result["tensors"][0]["sha256"], digest)
        self.assertLess(loaded - opened, 100 << 10, "KiB")
        copied = self.peak("copy", path, self.path("dst"), "--via", "cuda:0")
        self.assertLess(copied - opened, 100 << 10, "KiB")
        self.assertTrue(filecmp.cmp(path, self.path("dst"), shallow=False))

    def test_a_file_is_loaded_and_copied_through_a_device_in_bounded_memory(self):
        self.check((4 << 30) if os.environ.get("QUAY_TEST_FULL") else (200 << 20) + 12345)


class Json(ProgramTest):
    def load(self, *arguments, **options):
        return json.loads(self.succeed("load", *arguments, "--json", **options))

    def test_a_file_of_the_reference_library_loads_bit_by_bit_everywhere(self):
        with open(os.path.join(DATA, "mixed.json"), encoding="utf-8") as file:
            expected = {
                name: (DTYPES[tensor["dtype"]], tensor["shape"], tensor["sha256"])
                for name, tensor in json.load(file).items()
            }
        for target in TARGETS:
            target = target.format(folder=self.folder)
            with self.subTest(target=target):
                result = self.load(MIXED, "--sha256", "--to", target)
                self.assertEqual(result["backend"], target)
                self.assertEqual(
                    {t["name"]: (t["dtype"], t["shape"], t["sha256"]) for t in result["tensors"]},
                    expected,
                )
                self.assertEqual(self.files(), [])

    def test_direct_io_makes_no_difference(self):
        tensors = [("a", "U8", [77], pattern(77)), ("b", "U8", [300001], pattern(300001, 5)),
                   ("c", "U8", [(9 << 20) + 3], pattern((9 << 20) + 3, 9))]
        path = self.write("f", safetensors(tensors))
        drop_from_page_cache(path)
        result = self.load(path, "--sha256", "--direct")
        self.assertEqual(
            [t["sha256"] for t in result["tensors"]],
            [hashlib.sha256(data).hexdigest() for *_, data in tensors],
        )
        self.assertEqual(list(result), list(self.load(MIXED)))

    def test_direct_io_leaves_the_page_cache_alone(self):
        path = self.write("f", safetensors([("a", "U8", [32 << 20], pattern(32 << 20))]))
        if not has_direct_io(path) or not drop_from_page_cache(path):
            self.skipTest("the folder's file system has no direct I/O, or is in memory")
        self.load(path, "--direct")
        # The header, and what the kernel reads ahead of it and of the ends that are no whole pages.
        self.assertLess(cached_pages(path), (4 << 20) // 4096)

    def test_the_keys_are_those_of_the_manual(self):
        result = self.load(MIXED)
        self.assertEqual(
            list(result), ["file", "backend", "route", "bytes", "seconds", "gbps", "tensors"]
        )
        self.assertEqual(
            list(result["tensors"][0]), ["name", "dtype", "shape", "bytes", "sha256"]
        )
        self.assertEqual(result["file"], MIXED)
        self.assertEqual(result["route"], "file")
        self.assertEqual(result["bytes"], sum(t["bytes"] for t in result["tensors"]))
        self.assertGreater(result["seconds"], 0)
        self.assertAlmostEqual(
            result["gbps"], result["bytes"] / result["seconds"] / 1e9, delta=result["gbps"] / 1000
        )

    def test_digests_are_null_unless_asked_for(self):
        self.assertEqual({t["sha256"] for t in self.load(MIXED)["tensors"]}, {None})

    def test_digests_are_right_for_every_length_of_the_last_block(self):
        # Among them the example messages of FIPS 180-4: "abc", 56 bytes, a million times "a".
        messages = [pattern(n) for n in range(200)]
        messages += [b"abc", b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"]
        messages += [b"a" * 1000000, pattern((1 << 20) - 1), pattern(1 << 20), pattern((2 << 20) + 9)]
        path = self.write(
            "f", safetensors([(str(i), "U8", [len(m)], m) for i, m in enumerate(messages)])
        )
        digests = {t["name"]: t["sha256"] for t in self.load(path, "--sha256")["tensors"]}
        for i, message in enumerate(messages):
            self.assertEqual(digests[str(i)], hashlib.sha256(message).hexdigest(), f"message {i}")
        self.assertEqual(
            digests["200"], "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        )

    def test_tensors_of_any_size_and_distance_arrive(self):
        # Runs of tensors that are multiples of the alignment, and what breaks them.
        sizes = [256, 512, 0, 256, 1, 0, 0, 255, 256, 3 << 20, 257, 1 << 20, 7]
        tensors = [(f"t{i}", "U8", [n], pattern(n, i)) for i, n in enumerate(sizes)]
        path = self.write("f", safetensors(tensors))
        result = self.load(path, "--sha256")
        digests = {t["name"]: t["sha256"] for t in result["tensors"]}
        for name, _, _, data in tensors:
            self.assertEqual(digests[name], hashlib.sha256(data).hexdigest(), name)
        self.assertEqual(result["bytes"], sum(sizes))

    def test_tensors_at_odd_offsets_arrive(self):
        # Whatever is in front, the header's length puts the data at every offset modulo 8.
        for padding in range(8):
            tensors = [("o" * (padding + 1), "U8", [3], b"xyz"), ("d", "F64", [2], pattern(16))]
            result = self.load(self.write("f", safetensors(tensors)), "--sha256")
            digests = {t["name"]: t["sha256"] for t in result["tensors"]}
            self.assertEqual(digests["d"], hashlib.sha256(pattern(16)).hexdigest())

    def test_a_file_without_tensors_loads(self):
        result = self.load(self.write("f", safetensors([])))
        self.assertEqual((result["bytes"], result["tensors"], result["gbps"]), (0, [], 0))
        self.assertEqual(result["route"], "none")

    def test_a_file_of_empty_tensors_loads(self):
        result = self.load(self.write("f", safetensors([("e", "F32", [0, 3], b"")])), "--sha256")
        self.assertEqual(result["tensors"][0]["sha256"], hashlib.sha256(b"").hexdigest())

    def test_names_of_any_characters_are_in_the_json(self):
        names = ["", "\u540d\u524d", 'quote"d', "line\nbreak", "\x1b[31m", "\U0001f986"]
        path = self.write("f", safetensors([(n, "U8", [1], b"x") for n in names]))
        self.assertEqual({t["name"] for t in self.load(path)["tensors"]}, set(names))

    def test_a_path_that_is_no_utf8_is_escaped_in_the_json(self):
        path = os.fsencode(self.folder) + b"/\xff\xfe"
        with open(path, "wb") as file:
            file.write(safetensors([]))
        self.assertTrue(self.load(path)["file"].endswith("/\\xff\\xfe"))

    def test_a_hundred_thousand_tensors_load(self):
        count = 100000
        path = self.write(
            "f", safetensors([(f"layer.{i}", "U8", [1], b"x") for i in range(count)])
        )
        self.assertEqual(len(self.load(path)["tensors"]), count)


class Table(ProgramTest):
    def test_the_table_has_a_line_for_each_tensor(self):
        lines = self.succeed("load", MIXED).splitlines()
        self.assertEqual(lines[0].split(), ["NAME", "DTYPE", "SHAPE", "BYTES"])
        row = next(line for line in lines if line.startswith("model.embed.weight"))
        self.assertEqual(row.split(), ["model.embed.weight", "BF16", "[1000,", "64]", "128000"])
        self.assertEqual(lines[17], "")
        self.assertRegex(lines[18], r"^16 tensors, 133\.9 KiB, loaded to cpu$")
        self.assertRegex(lines[19], r"^route: file, file to pageable, 1 thread, ")
        self.assertRegex(lines[20], r"^time: \d+\.\d{6} s, \d+\.\d{3} GB/s$")

    def test_digests_are_a_column(self):
        with open(os.path.join(DATA, "mixed.json"), encoding="utf-8") as file:
            digest = json.load(file)["u8"]["sha256"]
        row = next(
            line
            for line in self.succeed("load", MIXED, "--sha256").splitlines()
            if line.startswith("u8 ")
        )
        self.assertEqual(row.split()[-1], digest)

    def test_columns_line_up_behind_wide_characters(self):
        lines = self.succeed("load", MIXED).splitlines()
        wide = next(line for line in lines if line.startswith("\u540d\u524d"))
        # Two characters take two columns each.
        self.assertEqual(wide.index("F32") + 2, lines[0].index("DTYPE"))

    def test_control_characters_in_names_are_escaped(self):
        names = ["\x1b[2J", "a\nb", "\x7f", "\u202e", "\x85"]
        path = self.write("f", safetensors([(n, "U8", [1], b"x") for n in names]))
        output = self.succeed("load", path)
        for escaped in ("\\x1b[2J", "a\\nb", "\\x7f", "\\u{202e}", "\\u{85}"):
            self.assertIn(escaped, output)
        for character in ("\x1b", "\x7f", "\u202e", "\x85"):
            self.assertNotIn(character, output)


    def test_format_characters_in_names_are_escaped(self):
        invisible = [
            chr(code)
            for code in range(0x110000)
            if unicodedata.category(chr(code)) in ("Cc", "Cf", "Zl", "Zp") and code != 0
        ] + ["\u034f", "\u115f", "\u3164", "\uffa0"]
        tensors = [(f"<{c}>", "U8", [1], b"x") for c in invisible]
        output = self.succeed("load", self.write("f", safetensors(tensors)))
        for character in invisible:
            if character != "\n":
                self.assertNotIn(character, output, f"U+{ord(character):04X}")
        self.assertIn("<\\u{200b}>", output)

    def test_what_changes_the_look_of_a_character_is_not_escaped(self):
        names = ["\u2764\ufe0f", "e\u0301", "\u0928\u093f"]
        tensors = [(name, "U8", [1], b"x") for name in names]
        output = self.succeed("load", self.write("f", safetensors(tensors)))
        for name in names:
            self.assertIn(name, output)


class Failures(ProgramTest):
    def test_files_that_cannot_be_opened_are_named_with_the_reason(self):
        os.mkfifo(self.path("fifo"))
        for path, part in (
            (self.path("missing"), "ENOENT"),
            (self.folder, "directory"),
            (self.path("fifo"), "FIFO"),
            ("/dev/null", "device"),
        ):
            with self.subTest(path=path):
                message = self.fail_with("load", path, timeout=20)
                self.assertIn(part, message)
                self.assertIn(path, message)

    def test_a_malformed_file_is_refused_with_the_name_of_the_tensor(self):
        text = b'{"odd":{"dtype":"F32","shape":[2],"data_offsets":[0,7]}}'
        path = self.write("f", struct.pack("<Q", len(text)) + text + b"1234567")
        message = self.fail_with("load", path, "--json")
        self.assertIn("'odd'", message)
        self.assertIn(path, message)

    def test_a_file_that_is_cut_off_anywhere_is_refused(self):
        whole = safetensors([("a", "F32", [2, 2], pattern(16)), ("b", "U8", [3], pattern(3))])
        for size in range(len(whole)):
            message = self.fail_with("load", self.write("f", whole[:size]))
            self.assertIn(self.path("f"), message)

    def test_a_failed_allocation_is_a_failure(self):
        message = self.fail_with("load", MIXED, "--to", "fault:after=0+cpu")
        self.assertIn("fault", message)


class Progress(ProgramTest):
    """The bar on a terminal: stderr is one end of a pseudoterminal."""

    def stderr_on_a_terminal(self, *arguments):
        main, other = pty.openpty()
        environment = dict(os.environ, TERM="xterm")
        with subprocess.Popen(
            [PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=other, env=environment
        ) as process:
            os.close(other)
            output = b""
            while True:
                try:
                    part = os.read(main, 4096)
                except OSError:
                    break
                if not part:
                    break
                output += part
            json.loads(process.stdout.read())
            self.assertEqual(process.wait(), 0)
        os.close(main)
        return output

    def large_file(self):
        size = 128 << 20
        text = b'{"a":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (size, size)
        path = self.write("f", struct.pack("<Q", len(text)) + text)
        os.truncate(path, 8 + len(text) + size)
        return path

    def test_a_bar_is_drawn_on_a_terminal_and_taken_away(self):
        output = self.stderr_on_a_terminal("load", self.large_file(), "--json")
        self.assertIn(b"GB/s", output)
        self.assertIn(b"128.0 MiB", output)
        self.assertTrue(output.endswith(b"\r\x1b[K"), output[-40:])

    def test_no_bar_is_drawn_if_it_is_not_wanted(self):
        path = self.large_file()
        self.assertEqual(self.stderr_on_a_terminal("load", path, "--json", "--no-progress"), b"")


if __name__ == "__main__":
    unittest.main()
