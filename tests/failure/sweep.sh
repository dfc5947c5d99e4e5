#!/usr/bin/env bash
#: Usage: sweep.sh load | load_to_file | copy | devices | save
#:
#: Runs one scenario of the program with its n-th call failing, for n = 1, 2 ... until there is no
#: n-th call, then the same with every call from the n-th on failing. Every third n, from
#: $QUAY_TEST_SWEEP_FIRST on, with one thread; with QUAY_TEST_FULL every n, with one thread and with
#: two. Each run must either fail cleanly (status 1, one line on stderr, no new file) or, where the
#: call was dispensable, give exactly what a run without failures gives. Leaks and crashes show as any
#: other status.
set -euo pipefail

scenario=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model=$QUAY_TEST_DATA/mixed.safetensors
mkdir "$work/out"

# Runs the scenario; what it gives is in $work/stdout, $work/stderr and $work/out.
run_scenario() {
  rm -rf "$work/out" && mkdir "$work/out"
  case $scenario in
  load) "$QUAY_FAILING" load "$model" --to track+cpu --json --sha256 ;;
  load_to_file) "$QUAY_FAILING" load "$model" --to "mmap:$work/out" --json --sha256 ;;
  copy) "$QUAY_FAILING" copy "$model" "$work/out/copy" --via cpu --no-progress ;;
  devices) "$QUAY_FAILING" devices --json ;;
  save) "$QUAY_FAILING" "$work/out/file" ;;
  *) echo "sweep.sh: no scenario is called $scenario" >&2 && exit 2 ;;
  esac >"$work/stdout" 2>"$work/stderr"
}

# What of a run must not depend on failures: times and rates do, and so does what `devices` finds
# out, but not which backends it knows.
result() {
  case $scenario in
  devices) grep -E '^      "name"' "$work/stdout" ;;
  *) sed -E 's/"(seconds|gbps)": *[^,}]*//g; s/[0-9.]+ s, [0-9.]+ GB\/s//' "$work/stdout" ;;
  esac
  find "$work/out" -type f -printf '%f ' -exec sha256sum {} + | sed "s|$work||"
}

complain() {
  echo "$scenario, threads=$QUAY_COPY_THREADS, call $n (${1:-}), $(cat "$work/log" 2>/dev/null): $2"
  sed 's/^/  stdout: /' "$work/stdout" | head -n 5
  sed 's/^/  stderr: /' "$work/stderr" | head -n 20
  bad=$((bad + 1))
}

check() {
  local status=$1 mode=$2
  case $status in
  0)
    [[ $(result) == "$expected" ]] || complain "$mode" "succeeded with another result"
    ;;
  1)
    # Where everything fails from some call on, giving back fails as well, which is logged.
    [[ $mode == from_there_on || $(wc -l <"$work/stderr") -eq 1 ]] ||
      complain "$mode" "not exactly one line on stderr"
    [[ -s $work/stderr ]] || complain "$mode" "no message"
    grep -qv '^quay: ' "$work/stderr" && complain "$mode" "a line that does not begin with quay:"
    left_nothing_partial || complain "$mode" "left a file behind"
    failed=$((failed + 1))
    ;;
  *) complain "$mode" "status $status" ;;
  esac
}

# A failed run leaves nothing, or, if only the last step to durability failed and the message says so,
# the whole file.
left_nothing_partial() {
  [[ -n $(ls -A "$work/out") ]] || return 0
  [[ $scenario == copy && $(ls -A "$work/out") == copy ]] && cmp -s "$model" "$work/out/copy" &&
    grep -q 'in place' "$work/stderr"
}

bad=0
failed=0
runs=0
threads=(1)
first=${QUAY_TEST_SWEEP_FIRST:-1}
step=3
[[ -z ${QUAY_TEST_FULL:-} ]] || { threads=(1 2) && first=1 && step=1; }
for QUAY_COPY_THREADS in "${threads[@]}"; do
  export QUAY_COPY_THREADS
  unset QUAY_TEST_FAIL_CALL QUAY_TEST_FAIL_ON
  run_scenario || { echo "fails without a failing call" && cat "$work/stderr" && exit 1; }
  expected=$(result)
  export QUAY_TEST_FAIL_LOG=$work/log
  for mode in once from_there_on; do
    unset QUAY_TEST_FAIL_ON
    [[ $mode == once ]] || export QUAY_TEST_FAIL_ON=1
    for ((n = first; ; n += step)); do
      rm -f "$work/log"
      export QUAY_TEST_FAIL_CALL=$n
      status=0
      run_scenario || status=$?
      [[ -e $work/log ]] || break
      runs=$((runs + 1))
      check "$status" "$mode"
      [[ $bad -lt 10 ]] || break 3
    done
  done
done
echo "$scenario: $runs runs with a failing call, $failed of them failed cleanly, $bad wrongly"
[[ $bad -eq 0 && $failed -gt 0 ]]
