"""The part of Quay's C interface that the DLPack tests need, through ctypes.

The layouts stand in include/quay/dlpack.h; nothing here knows NumPy or any other library.
"""

import ctypes
import os
from ctypes import (CFUNCTYPE, POINTER, byref, c_bool, c_char_p, c_int, c_int32, c_int64, c_uint8,
                    c_uint16, c_uint32, c_uint64, c_void_p)

# quay_status, include/quay/status.h.
READ_ONLY, UNSUPPORTED = 8, 12


class DlTensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32),
                ("ndim", c_int32), ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16),
                ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("byte_offset", c_uint64)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("manager_ctx", c_void_p),
                ("deleter", CFUNCTYPE(None, c_void_p)), ("flags", c_uint64), ("tensor", DlTensor)]


class Unversioned(ctypes.Structure):
    _fields_ = [("tensor", DlTensor), ("manager_ctx", c_void_p),
                ("deleter", CFUNCTYPE(None, c_void_p))]


# Capsule name, name once it is used, structure, and the functions' suffix.
FORMS = {
    True: (b"dltensor_versioned", b"used_dltensor_versioned", Versioned, ""),
    False: (b"dltensor", b"used_dltensor", Unversioned, "_unversioned"),
}


class Error(ctypes.Structure):
    _fields_ = [("status", c_int), ("native_code", c_int64), ("native_name", c_char_p),
                ("backend", c_char_p), ("message", c_char_p)]


class QuayError(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class Stats(ctypes.Structure):
    _fields_ = [(name, c_uint64)
                for name in ("live_bytes", "live_count", "peak_bytes", "reserved_bytes",
                             "pending_bytes", "alloc_count", "free_count", "failure_count",
                             "error_count", "largest_free_bytes")]


lib = ctypes.CDLL(os.environ["QUAY_SHARED_LIBRARY"])
lib.quay_last_error.restype = POINTER(Error)
lib.quay_allocator_open.argtypes = [c_char_p, POINTER(c_void_p)]
lib.quay_allocator_release.argtypes = [c_void_p]
lib.quay_allocator_release.restype = None
lib.quay_allocator_stats.argtypes = [c_void_p, POINTER(Stats)]
lib.quay_dtype_parse.argtypes = [c_char_p, POINTER(c_int)]
lib.quay_buffer_create_from_host.argtypes = [c_void_p, c_int, c_int32, POINTER(c_int64), c_void_p,
                                             c_void_p, POINTER(c_void_p)]
lib.quay_buffer_release.argtypes = [c_void_p]
lib.quay_buffer_release.restype = None
lib.quay_buffer_copy_in.argtypes = [c_void_p, c_void_p, c_uint64]
lib.quay_buffer_copy_out.argtypes = [c_void_p, c_void_p, c_uint64]
lib.quay_buffer_seal.argtypes = [c_void_p]
lib.quay_buffer_address.argtypes = [c_void_p, POINTER(c_uint64)]
lib.quay_dtype_name.restype = c_char_p
for function, result in (("size", c_uint64), ("dtype", c_int), ("rank", c_int32),
                         ("shape", POINTER(c_int64)), ("is_sealed", c_bool)):
    getattr(lib, "quay_buffer_" + function).argtypes = [c_void_p]
    getattr(lib, "quay_buffer_" + function).restype = result
for suffix in ("", "_unversioned"):
    getattr(lib, "quay_dlpack_export" + suffix).argtypes = [c_void_p, c_void_p, POINTER(c_void_p)]
    getattr(lib, "quay_dlpack_import" + suffix).argtypes = [c_void_p, c_void_p, POINTER(c_void_p)]

python = ctypes.pythonapi
python.PyCapsule_New.argtypes = [c_void_p, c_char_p, c_void_p]
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_IsValid.argtypes = [c_void_p, c_char_p]
python.PyCapsule_GetPointer.argtypes = [c_void_p, c_char_p]
python.PyCapsule_GetPointer.restype = c_void_p
python.PyCapsule_SetName.argtypes = [ctypes.py_object, c_char_p]


def check(status):
    if status != 0:
        raise QuayError(status, lib.quay_last_error().contents.message.decode())


class Allocator:
    def __init__(self, spec):
        self.handle = c_void_p()
        check(lib.quay_allocator_open(spec.encode(), byref(self.handle)))

    def close(self):
        lib.quay_allocator_release(self.handle)

    def live_count(self):
        stats = Stats()
        check(lib.quay_allocator_stats(self.handle, byref(stats)))
        return stats.live_count


class Buffer:
    """A quay_buffer, and a producer in the sense of DLPack's Python specification."""

    def __init__(self, handle):
        self.handle = handle
        self.versions = []  # what consumers asked for

    @classmethod
    def create(cls, allocator, dtype, shape, data):
        number, handle = c_int(), c_void_p()
        check(lib.quay_dtype_parse(dtype.encode(), byref(number)))
        check(lib.quay_buffer_create_from_host(allocator.handle, number, len(shape),
                                               (c_int64 * len(shape))(*shape), data, None,
                                               byref(handle)))
        return cls(handle)

    @classmethod
    def from_capsule(cls, capsule):
        """Takes the tensor over and renames the capsule, or leaves both and raises."""
        for name, used, _, suffix in FORMS.values():
            if python.PyCapsule_IsValid(id(capsule), name):
                handle = c_void_p()
                address = python.PyCapsule_GetPointer(id(capsule), name)
                check(getattr(lib, "quay_dlpack_import" + suffix)(address, None, byref(handle)))
                python.PyCapsule_SetName(capsule, used)
                return cls(handle)
        raise TypeError(f"{capsule!r} holds no DLPack tensor, or a used one")

    def release(self):
        lib.quay_buffer_release(self.handle)
        self.handle = None

    def seal(self):
        check(lib.quay_buffer_seal(self.handle))

    @property
    def sealed(self):
        return lib.quay_buffer_is_sealed(self.handle)

    @property
    def dtype(self):
        return lib.quay_dtype_name(lib.quay_buffer_dtype(self.handle)).decode()

    @property
    def shape(self):
        extents = lib.quay_buffer_shape(self.handle)
        return tuple(extents[i] for i in range(lib.quay_buffer_rank(self.handle)))

    @property
    def address(self):
        address = c_uint64()
        check(lib.quay_buffer_address(self.handle, byref(address)))
        return address.value

    def bytes(self):
        data = ctypes.create_string_buffer(max(1, lib.quay_buffer_size(self.handle)))
        size = lib.quay_buffer_size(self.handle)
        check(lib.quay_buffer_copy_out(self.handle, data, size))
        return data.raw[:size]

    def write(self, data):
        check(lib.quay_buffer_copy_in(self.handle, data, len(data)))

    def export(self, versioned):
        address = c_void_p()
        name, _, _, suffix = FORMS[versioned]
        check(getattr(lib, "quay_dlpack_export" + suffix)(self.handle, None, byref(address)))
        return python.PyCapsule_New(address, name,
                                    ctypes.cast(lib.quay_test_delete_unused, c_void_p))

    def describe(self):
        """The exported tensor's structure, for a moment."""
        capsule = self.export(True)
        tensor = Versioned.from_address(
            python.PyCapsule_GetPointer(id(capsule), FORMS[True][0])).tensor
        return tensor.device_type, tensor.device_id

    def __dlpack_device__(self):
        return self.describe()

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        del stream, dl_device  # the export waits on the host; tensors stay where they are
        if copy:
            raise BufferError("Quay makes no copies here")
        self.versions.append(max_version)
        try:
            return self.export(max_version is not None and max_version[0] >= 1)
        except QuayError as error:
            raise BufferError(str(error)) from error
