"""Exchanges tensors between Quay and another library, byte for byte and for lifetime.

Usage: dlpack_exchange.py numpy|torch|cupy SPEC

SPEC is the allocator whose memory is exchanged. Ends with status 77 (skipped) and a printed reason
where the library or the memory is missing, with 1 if QUAY_TEST_FAIL_ON_SKIP names one of them.
"""

import gc
import importlib
import os
import sys
import threading
import unittest
import weakref

import quay_ctypes as quay

LIBRARY, SPEC = sys.argv[1:3]
ON_GPU = SPEC.startswith("cuda:")
SHAPES = ((), (1,), (7,), (3, 4, 5), (1, 6, 1), (0,), (3, 0, 4))
# How libraries refuse a dtype.
REFUSALS = (BufferError, RuntimeError, TypeError, AttributeError)
SIZES = {"bool": 1, "u8": 1, "i8": 1, "u16": 2, "i16": 2, "u32": 4, "i32": 4, "u64": 8, "i64": 8,
         "f16": 2, "bf16": 2, "f32": 4, "f64": 8, "f8_e4m3": 1, "f8_e5m2": 1, "f8_e8m0": 1,
         "c64": 8, "c128": 16}


class NumpyLike:
    """NumPy, and CuPy with its interface. Names of Quay's dtypes and theirs; what every version
    exchanges, and what some do not."""
    required = {"u8": "uint8", "i8": "int8", "u16": "uint16", "i16": "int16", "u32": "uint32",
                "i32": "int32", "u64": "uint64", "i64": "int64", "f16": "float16",
                "f32": "float32", "f64": "float64", "c64": "complex64", "c128": "complex128"}
    optional = {"bool": "bool"}

    def __init__(self, module):
        self.module = module

    def from_dlpack(self, producer):
        return self.module.from_dlpack(producer)

    def make(self, dtype, shape, data):
        import numpy
        host = numpy.frombuffer(data, dtype={**self.required, **self.optional}[dtype])
        return self.module.array(host.reshape(shape))

    def bytes(self, array):
        return array.tobytes()

    def shape(self, array):
        return array.shape

    def dtype(self, array):
        return str(array.dtype)

    def writable(self, array):
        return array.flags.writeable if hasattr(array.flags, "writeable") else True

    def overwrite(self, array, data):
        array[...] = self.make("u8", array.shape, data)

    def every_second_column(self, array):
        return array[:, ::2]

    def address(self, array):
        return array.ctypes.data if hasattr(array, "ctypes") else array.data.ptr

    def synchronize(self):
        if hasattr(self.module, "cuda"):
            self.module.cuda.Device().synchronize()

    def device_bytes(self):
        """What the library's arrays take on the GPU."""
        return self.module.get_default_memory_pool().used_bytes()

    def count_up(self, count):
        return self.module.arange(count, dtype="int32")

    def pinned(self, data):
        import numpy
        memory = self.module.cuda.alloc_pinned_memory(len(data))
        array = numpy.frombuffer(memory, dtype="uint8", count=len(data))
        array[...] = numpy.frombuffer(data, dtype="uint8")
        return array


class Torch:
    required = {"u8": "uint8", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
                "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
                "c64": "complex64", "c128": "complex128"}
    optional = {"bool": "bool", "u16": "uint16", "u32": "uint32", "u64": "uint64",
                "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2", "f8_e8m0": "float8_e8m0fnu"}

    def __init__(self, module):
        self.module = module
        self.device = "cuda:0" if "cuda" in SPEC else "cpu"

    def from_dlpack(self, producer):
        return self.module.from_dlpack(producer)

    def make(self, dtype, shape, data):
        torch_dtype = getattr(self.module, {**self.required, **self.optional}[dtype])
        if not data:
            return self.module.empty(shape, dtype=torch_dtype, device=self.device)
        flat = self.module.tensor(list(data), dtype=self.module.uint8, device=self.device)
        return flat.view(torch_dtype).reshape(shape)

    def bytes(self, tensor):
        if tensor.numel() == 0:
            return b""
        return bytes(tensor.contiguous().reshape(-1).view(self.module.uint8).cpu().tolist())

    def shape(self, tensor):
        return tuple(tensor.shape)

    def dtype(self, tensor):
        return str(tensor.dtype).replace("torch.", "")

    def writable(self, tensor):
        del tensor
        return True  # PyTorch has no read-only tensors

    def overwrite(self, tensor, data):
        tensor.copy_(self.make("u8", tensor.shape, data))

    def every_second_column(self, tensor):
        return tensor[:, ::2]

    def address(self, tensor):
        return tensor.data_ptr()

    def synchronize(self):
        if self.device != "cpu":
            self.module.cuda.synchronize()

    def device_bytes(self):
        return self.module.cuda.memory_allocated()

    def count_up(self, count):
        return self.module.arange(count, dtype=self.module.int32, device=self.device)

    def pinned(self, data):
        return self.module.tensor(list(data), dtype=self.module.uint8).pin_memory()


def pattern(dtype, shape):
    """Bytes without a zero; ones for bool, whose other values mean nothing."""
    size = SIZES[dtype]
    for extent in shape:
        size *= extent
    return bytes(1 if dtype == "bool" else 1 + i * 37 % 251 for i in range(size))


def capsule_of(array):
    """Versioned where the library can, as DLPack's Python specification asks for it."""
    library.synchronize()
    try:
        return array.__dlpack__(max_version=(1, 2))
    except TypeError:
        return array.__dlpack__()


def collect():
    gc.collect()
    library.synchronize()


class Export(unittest.TestCase):
    """From Quay to the library."""

    def setUp(self):
        self.allocator = quay.Allocator(SPEC)

    def tearDown(self):
        collect()
        self.assertEqual(self.allocator.live_count(), 0)
        self.allocator.close()

    def create(self, dtype="u8", shape=(4, 6)):
        return quay.Buffer.create(self.allocator, dtype, shape, pattern(dtype, shape))

    def exchange(self, dtype, shape):
        buffer = self.create(dtype, shape)
        try:
            array = library.from_dlpack(buffer)
            self.assertEqual(library.shape(array), shape)
            self.assertEqual(library.dtype(array), {**library.required, **library.optional}[dtype])
            self.assertEqual(library.bytes(array), pattern(dtype, shape))
            if buffer.bytes():
                self.assertEqual(library.address(array), buffer.address)
        finally:
            buffer.release()

    def test_every_dtype_and_shape_arrives_byte_for_byte_without_a_copy(self):
        for dtype in library.required:
            for shape in SHAPES:
                with self.subTest(dtype=dtype, shape=shape):
                    self.exchange(dtype, shape)

    def test_dtypes_that_not_every_version_knows_arrive_or_are_refused(self):
        for dtype in library.optional:
            with self.subTest(dtype=dtype):
                try:
                    self.exchange(dtype, (3, 4))
                except REFUSALS as error:
                    print(f"{LIBRARY} takes no {dtype}: {error}")

    def test_the_array_keeps_the_memory_after_the_buffer_is_released(self):
        buffer = self.create()
        array = library.from_dlpack(buffer)
        buffer.release()
        self.assertEqual(self.allocator.live_count(), 1)
        self.assertEqual(library.bytes(array), pattern("u8", (4, 6)))
        del array
        collect()
        self.assertEqual(self.allocator.live_count(), 0)

    def test_the_array_may_die_on_another_thread(self):
        buffer = self.create()
        arrays = [library.from_dlpack(buffer)]
        buffer.release()
        thread = threading.Thread(target=arrays.clear)
        thread.start()
        thread.join()
        collect()
        self.assertEqual(self.allocator.live_count(), 0)

    def test_a_capsule_that_nobody_takes_gives_its_memory_back(self):
        for versioned in (True, False):
            with self.subTest(versioned=versioned):
                buffer = self.create()
                capsule = buffer.export(versioned)
                buffer.release()
                self.assertEqual(self.allocator.live_count(), 1)
                del capsule
                self.assertEqual(self.allocator.live_count(), 0)

    def test_both_sides_see_what_the_other_writes(self):
        buffer = self.create()
        array = library.from_dlpack(buffer)
        buffer.write(b"written by the buffer...")
        self.assertEqual(library.bytes(array), b"written by the buffer...")
        if library.writable(array):
            library.overwrite(array, b"and by the other library")
            library.synchronize()
            self.assertEqual(buffer.bytes(), b"and by the other library")
        else:
            print(f"{LIBRARY} makes read-only arrays of unversioned tensors")
            self.assertEqual(buffer.versions, [None])
        buffer.release()

    def test_a_sealed_buffer_arrives_read_only_or_not_at_all(self):
        buffer = self.create()
        buffer.seal()
        try:
            array = library.from_dlpack(buffer)
        except BufferError as error:
            print(f"{LIBRARY} was refused a sealed buffer: {error}")
            if buffer.versions == [None]:
                self.assertIn("read-only", str(error))
        else:
            self.assertEqual(library.bytes(array), pattern("u8", (4, 6)))
            if LIBRARY == "numpy":  # the others have no read-only arrays, and take it all the same
                self.assertFalse(library.writable(array))
        finally:
            buffer.release()


class Import(unittest.TestCase):
    """From the library to Quay."""

    def test_every_dtype_and_shape_arrives_byte_for_byte_without_a_copy(self):
        for dtype in library.required:
            for shape in SHAPES:
                with self.subTest(dtype=dtype, shape=shape):
                    array = library.make(dtype, shape, pattern(dtype, shape))
                    buffer = quay.Buffer.from_capsule(capsule_of(array))
                    self.assertEqual(buffer.dtype, dtype)
                    self.assertEqual(buffer.shape, shape)
                    self.assertEqual(buffer.bytes(), pattern(dtype, shape))
                    if buffer.bytes():
                        self.assertEqual(buffer.address, library.address(array))
                    buffer.release()

    def test_dtypes_that_not_every_version_knows_arrive_or_are_not_exported(self):
        for dtype in library.optional:
            with self.subTest(dtype=dtype):
                try:
                    array = library.make(dtype, (3, 4), pattern(dtype, (3, 4)))
                    capsule = capsule_of(array)
                except REFUSALS as error:
                    print(f"{LIBRARY} exports no {dtype}: {error}")
                    continue
                buffer = quay.Buffer.from_capsule(capsule)
                self.assertEqual(buffer.dtype, dtype)
                self.assertEqual(buffer.bytes(), pattern(dtype, (3, 4)))
                buffer.release()

    def test_the_buffer_keeps_the_memory_after_the_array_is_gone(self):
        array = library.make("i32", (64, 64), pattern("i32", (64, 64)))
        buffer = quay.Buffer.from_capsule(capsule_of(array))
        del array
        collect()
        others = [library.make("i32", (64, 64), bytes([255]) * 16384) for _ in range(8)]
        self.assertEqual(buffer.bytes(), pattern("i32", (64, 64)))
        del others
        buffer.release()

    def test_a_capsule_is_used_once(self):
        array = library.make("u8", (2, 2), b"abcd")
        capsule = capsule_of(array)
        buffer = quay.Buffer.from_capsule(capsule)
        with self.assertRaises(TypeError):
            quay.Buffer.from_capsule(capsule)
        buffer.release()

    def test_strides_that_are_not_compact_are_refused_and_the_capsule_stays_whole(self):
        array = library.make("u8", (4, 6), pattern("u8", (4, 6)))
        capsule = capsule_of(library.every_second_column(array))
        with self.assertRaises(quay.QuayError) as raised:
            quay.Buffer.from_capsule(capsule)
        self.assertEqual(raised.exception.status, quay.UNSUPPORTED)
        self.assertIn("[4, 3]", str(raised.exception))
        self.assertIn("[6, 2]", str(raised.exception))
        del capsule
        self.assertEqual(library.bytes(array), pattern("u8", (4, 6)))

    @unittest.skipUnless(ON_GPU, "the library tells what it has on a GPU alone")
    def test_the_librarys_memory_goes_back_to_it_with_the_buffer_on_any_thread(self):
        for on_thread in (False, True):
            with self.subTest(on_thread=on_thread):
                collect()
                before = library.device_bytes()
                array = library.make("i32", (512, 512), pattern("i32", (512, 512)))
                buffer = quay.Buffer.from_capsule(capsule_of(array))
                del array
                collect()
                self.assertGreaterEqual(library.device_bytes(), before + (1 << 20))
                if on_thread:
                    thread = threading.Thread(target=buffer.release)
                    thread.start()
                    thread.join()
                else:
                    buffer.release()
                collect()
                self.assertEqual(library.device_bytes(), before)

    @unittest.skipUnless(ON_GPU, "of GPU memory")
    def test_both_sides_see_what_the_other_writes(self):
        array = library.make("u8", (4, 6), pattern("u8", (4, 6)))
        buffer = quay.Buffer.from_capsule(capsule_of(array))
        buffer.write(b"written by the buffer...")
        self.assertEqual(library.bytes(array), b"written by the buffer...")
        library.overwrite(array, b"and by the other library")
        library.synchronize()
        self.assertEqual(buffer.bytes(), b"and by the other library")
        buffer.release()

    @unittest.skipUnless(ON_GPU, "of GPU memory")
    def test_a_large_tensor_arrives_however_the_library_has_mapped_it(self):
        # 96 MiB: over several pieces where PyTorch maps its segments piece by piece.
        count = 24 << 20
        array = library.count_up(count)
        buffer = quay.Buffer.from_capsule(capsule_of(array))
        self.assertEqual(buffer.address, library.address(array))
        numbers = memoryview(buffer.bytes()).cast("i")
        self.assertEqual(len(numbers), count)
        self.assertTrue(all(numbers[i] == i for i in range(0, count, 997)))
        self.assertEqual(numbers[count - 1], count - 1)
        buffer.release()

    @unittest.skipUnless(ON_GPU, "of pinned memory")
    def test_pinned_memory_arrives_whatever_the_library_calls_it(self):
        array = library.pinned(pattern("u8", (1000,)))
        try:
            capsule = array.__dlpack__()
        except REFUSALS as error:
            print(f"{LIBRARY} exports no pinned memory: {error}")
            return
        buffer = quay.Buffer.from_capsule(capsule)
        self.assertEqual(buffer.bytes(), pattern("u8", (1000,)))
        buffer.release()

    @unittest.skipUnless(LIBRARY == "numpy", "weak references tell the end of NumPy arrays alone")
    def test_the_array_dies_with_the_buffer_on_any_thread(self):
        for on_thread in (False, True):
            with self.subTest(on_thread=on_thread):
                array = library.make("u8", (4, 6), pattern("u8", (4, 6)))
                dead = weakref.ref(array)
                buffer = quay.Buffer.from_capsule(capsule_of(array))
                del array
                collect()
                self.assertIsNotNone(dead())
                if on_thread:
                    thread = threading.Thread(target=buffer.release)
                    thread.start()
                    thread.join()
                else:
                    buffer.release()
                collect()
                self.assertIsNone(dead())

    @unittest.skipUnless(LIBRARY == "numpy", "only NumPy has read-only arrays")
    def test_a_read_only_array_gives_a_sealed_buffer(self):
        array = library.make("u8", (4, 6), pattern("u8", (4, 6)))
        array.flags.writeable = False
        try:
            capsule = capsule_of(array)
        except (BufferError, TypeError) as error:
            print(f"{LIBRARY} exports no read-only array: {error}")
            return
        buffer = quay.Buffer.from_capsule(capsule)
        self.assertTrue(buffer.sealed)
        with self.assertRaises(quay.QuayError) as raised:
            buffer.write(b"never to arrive anywhere")
        self.assertEqual(raised.exception.status, quay.READ_ONLY)
        buffer.release()

    @unittest.skipUnless(LIBRARY == "numpy", "reference counts are of NumPy's arrays")
    def test_a_thousand_exchanges_leave_no_reference_behind(self):
        array = library.make("f32", (4, 6), pattern("f32", (4, 6)))
        before = sys.getrefcount(array)
        for _ in range(1000):
            buffer = quay.Buffer.from_capsule(capsule_of(array))
            back = library.from_dlpack(buffer)
            buffer.release()
            del back
        collect()
        self.assertEqual(sys.getrefcount(array), before)


def report_skip(target, reason):
    """Under the rule of quay_test_skip() of the C tests."""
    for word in os.environ.get("QUAY_TEST_FAIL_ON_SKIP", "").lower().split(","):
        if word.strip() and word.strip() in target.lower():
            sys.exit(f"would skip ({target}: {reason}), but QUAY_TEST_FAIL_ON_SKIP names '{word}'")
    print(f"[SKIP] {target}: {reason}")


def skip(target, reason):
    report_skip(target, reason)
    sys.exit(77)


def load_library():
    try:
        module = importlib.import_module(LIBRARY)
    except ImportError as error:
        skip(LIBRARY, f"{sys.executable} has no such module: {error}")
    try:
        quay.Allocator(SPEC).close()
    except quay.QuayError as error:
        skip(SPEC, f"{error}")
    if LIBRARY == "numpy" and not hasattr(module, "from_dlpack"):
        skip(LIBRARY, f"version {module.__version__} has no from_dlpack; 1.22 has")
    print(f"{LIBRARY} {module.__version__}, {SPEC}, Python {sys.version.split()[0]}")
    return Torch(module) if LIBRARY == "torch" else NumpyLike(module)


if __name__ == "__main__":
    library = load_library()
    unittest.main(argv=sys.argv[:1], verbosity=2)
