# shellcheck shell=bash
# Shared by the scripts of this folder; sourced, not run. Goes to the root of the project.

script_path=$(realpath "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

jobs=$(nproc)
export CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL:-$jobs}
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$jobs}

say() {
  printf '%s\n' "$*"
}

fail() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# The help of a script is its lines that start with "#:".
print_help() {
  sed -n 's/^#: \{0,1\}//p' "$script_path"
}

# The name under which version 14 of an LLVM tool is installed here; empty where it is not.
llvm14() {
  local name
  for name in "$1-14" "$1"; do
    if command -v "$name" >/dev/null && "$name" --version 2>/dev/null | grep -q 'version 14\.'; then
      printf '%s' "$name"
      return
    fi
  done
}

# Configures and builds a preset: the targets that are named, else all of it.
build_preset() {
  local preset=$1
  shift
  local targets=()
  [[ $# -eq 0 ]] || targets=(--target "$@")
  cmake --preset "$preset" --log-level=WARNING >/dev/null
  cmake --build --preset "$preset" "${targets[@]}" -- --quiet
}
