"""Reads logs of allocations in the format of the RAPIDS Memory Manager, as `quay replay` does."""

import dataclasses
import gzip

HEADER = "Thread,Time,Action,Pointer,Size,Stream"


class BadLog(Exception):
    """The message names the file and the line."""


@dataclasses.dataclass
class Trace:
    """Events are tuples (frees, slot, size, stream): a block has a slot while it is live, streams are
    numbers from 0 on in the order of their first events. Allocations that failed are left out.
    """

    events: list
    slots: int
    streams: list  # as the log names them
    peak_live: int  # bytes


def _number(text, base, what):
    text = text.strip()
    if base == 16 and text == "(nil)":
        return 0
    try:
        # int() would take signs, and underscores between digits.
        if not text or not text[0].isalnum() or "_" in text:
            raise ValueError
        return int(text, base)
    except ValueError:
        raise BadLog(f"'{text}' is no {what}") from None


class _Reader:
    def __init__(self):
        self.trace = Trace(events=[], slots=0, streams=[], peak_live=0)
        self._slots = {}  # of live blocks: pointer to (slot, size)
        self._unused = []
        self._streams = {}
        self._live = 0

    def line(self, fields):
        if len(fields) != 6:
            raise BadLog(f"6 fields are expected, and here are {len(fields)}")
        action, pointer = fields[2], _number(fields[3], 16, "pointer")
        size, stream = _number(fields[4], 10, "size"), _number(fields[5], 16, "stream")
        if action not in ("allocate", "free", "allocate failure"):
            raise BadLog(f"'{action}' is none of allocate, free, allocate failure")
        if action == "allocate failure" or (pointer == 0 and size == 0):
            return
        number = self._streams.setdefault(stream, len(self._streams))
        if number == len(self.trace.streams):
            self.trace.streams.append(stream)
        if action == "allocate":
            self._allocate(pointer, size, number)
        else:
            self._free(pointer, number)

    def _allocate(self, pointer, size, stream):
        if pointer in self._slots:
            raise BadLog(f"{pointer:#x} is allocated already")
        if self._unused:
            slot = self._unused.pop()
        else:
            slot = self.trace.slots
            self.trace.slots += 1
        self._slots[pointer] = (slot, size)
        self._live += size
        self.trace.peak_live = max(self.trace.peak_live, self._live)
        self.trace.events.append((False, slot, size, stream))

    def _free(self, pointer, stream):
        if pointer not in self._slots:
            raise BadLog(f"{pointer:#x} is freed and was not allocated")
        slot, size = self._slots.pop(pointer)
        self._unused.append(slot)
        self._live -= size
        self.trace.events.append((True, slot, size, stream))


def read(path):
    """The trace in a file, plain or compressed with gzip. Raises BadLog and OSError."""
    with open(path, "rb") as file:
        opened = gzip.open if file.read(2) == b"\x1f\x8b" else open
    reader, number = _Reader(), 0
    try:
        with opened(path, "rt", encoding="ascii") as file:
            if file.readline().strip() != HEADER:
                raise BadLog(f"the header {HEADER} is missing")
            for number, line in enumerate(file, 2):
                if line.strip():
                    reader.line(line.rstrip("\r\n").split(","))
    except BadLog as error:
        raise BadLog(f"{path}, line {max(number, 1)}: {error}") from None
    except (EOFError, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise BadLog(f"{path}, after line {max(number, 1)}: {error}") from None
    return reader.trace
