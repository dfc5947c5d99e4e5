#!/usr/bin/env python3
"""Takes waits and records of device work out of the library, one at a time, and checks that the test
that stands for each fails then.

    tests/mutation/run.py [WORD...]

With words only the mutations whose title holds one of them are run. mutations.txt is the list: a
title in brackets, then
    file  of the library
    test  program/suite/name, of tests/unit
    old   text that stands in the file just once
    new   what it becomes; empty to take it out
Long texts go on in indented lines, joined by line breaks without the indentation; white space is
compared as a single blank.

The sources are copied to a temporary folder, built there and tested as they are; each mutation then
changes one file of the copy, which is built again. A test that hangs has failed, too."""

import configparser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
HANGS_AFTER = 30  # seconds; the tests take milliseconds


def read_list():
    parser = configparser.ConfigParser(
        interpolation=None, delimiters=("=",), comment_prefixes=("#",), strict=True
    )
    parser.read(HERE / "mutations.txt", encoding="utf-8")
    return [(title, parser[title]) for title in parser.sections()]


def sources():
    """Paths of all files of the project, also where it is no repository, or git is missing."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, check=True, capture_output=True,
        ).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        files = (p.relative_to(ROOT) for p in ROOT.rglob("*") if p.is_file())
        return [str(p) for p in files if p.parts[0] not in ("build", ".git")]
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def copy_sources(folder):
    for name in sources():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)


def build(folder, programs):
    """Output of the compiler, or None if all was built."""
    result = subprocess.run(
        ["cmake", "--build", "--preset", "dev", "--target", *programs],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    return None if result.returncode == 0 else result.stdout


def passes(folder, test):
    """True, False, or None if there is no such test."""
    program, suite, name = test.split("/")
    try:
        result = subprocess.run(
            [folder / "build/dev/tests/unit" / f"test_unit_{program}", "--filter", f"{suite}/{name}"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=HANGS_AFTER,
            env={
                **os.environ,
                "QUAY_BACKEND": "cpu",
                "QUAY_CUDA_LIBRARY": str(folder / "build/dev/tests/sim_cuda/libquay_simcuda.so"),
                "SIMCUDA_STRICT": "1",
                "QUAY_VULKAN_LIBRARY": str(
                    folder / "build/dev/tests/support/vulkan_shim/libquay_vulkan_shim.so"),
                "VKSHIM_VALIDATE": "1",
            },
        )
    except subprocess.TimeoutExpired:
        return False
    output = result.stdout.decode(errors="replace")
    if "Tested: 1 " not in output:
        return None
    # Criterion takes a test for passed before its teardown runs: what fails there is only printed.
    told = "Assertion Failed" in output or "exited during its setup or teardown" in output
    # So it is for the Vulkan shim's messages, which are the process's status.
    told = told or "vkshim:" in output
    return result.returncode == 0 and not told


def change(text, old, new):
    """The text with `old`, which must be there once, replaced."""
    pattern = r"\s+".join(re.escape(word) for word in old.split())
    found = re.findall(pattern, text)
    if len(found) != 1:
        return None
    return re.sub(pattern, lambda match: new, text)


def run_one(folder, mutation):
    """None if the mutation was caught, else why not."""
    path = folder / mutation["file"]
    original = path.read_text(encoding="utf-8")
    mutated = change(original, mutation["old"], mutation.get("new", ""))
    if mutated is None:
        return f"the text does not stand in {mutation['file']} just once"
    program = "test_unit_" + mutation["test"].split("/")[0]
    try:
        path.write_text(mutated, encoding="utf-8")
        output = build(folder, [program])
        if output is not None:
            return "it does not compile:\n" + output[-2000:]
        if passes(folder, mutation["test"]):
            return f"{mutation['test']} passes all the same"
        return None
    finally:
        path.write_text(original, encoding="utf-8")


def prepare(folder, mutations):
    copy_sources(folder)
    # A mutation may leave something unused.
    subprocess.run(
        ["cmake", "--preset", "dev", "-DQUAY_WERROR=OFF", "--log-level=WARNING"],
        cwd=folder, check=True, stdout=subprocess.DEVNULL,
    )
    programs = sorted({"test_unit_" + m["test"].split("/")[0] for _, m in mutations})
    programs += ["quay_simcuda", "quay_vulkan_shim"]
    output = build(folder, programs)
    if output is not None:
        sys.exit("the sources do not build:\n" + output[-4000:])
    for test in sorted({m["test"] for _, m in mutations}):
        if not passes(folder, test):
            sys.exit(f"{test} is missing or fails without any mutation")


def main():
    words = sys.argv[1:]
    mutations = [(t, m) for t, m in read_list() if not words or any(w in t for w in words)]
    if not mutations:
        sys.exit("no mutation has such a title")
    missed = 0
    with tempfile.TemporaryDirectory(prefix="quay-mutation-") as name:
        folder = pathlib.Path(name)
        prepare(folder, mutations)
        for title, mutation in mutations:
            why = run_one(folder, mutation)
            missed += why is not None
            print(f"{'caught' if why is None else 'MISSED'}: {title}" + (f": {why}" if why else ""),
                  flush=True)
    print(f"{len(mutations) - missed} of {len(mutations)} mutations caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
