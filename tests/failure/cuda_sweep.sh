#!/usr/bin/env bash
#: Usage: cuda_sweep.sh load | copy
#:
#: Runs one scenario of the program on the simulated CUDA driver with its n-th call of the driver
#: failing, for n = 1, 2 ... until there is no n-th call. Each run must either fail cleanly (status 1,
#: one line on stderr, no new file) or, where the call was dispensable, give exactly what a run
#: without failures gives; and nothing may be left in the driver but what it has just refused to take
#: back, which is logged. Every third call, from $QUAY_TEST_SWEEP_FIRST on; with QUAY_TEST_FULL every
#: one, and each also with out of memory, and with a fault that loses the devices, where each later
#: call fails as well.
set -euo pipefail

scenario=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model=$QUAY_TEST_DATA/mixed.safetensors
export SIMCUDA_REPORT=$work/report SIMCUDA_DELAY=0
# More than a slot and a chunk of the backend's, so that copies take every way.
head -c 9000001 /dev/urandom >"$work/source"

run_scenario() {
  rm -rf "$work/out" "$SIMCUDA_REPORT" && mkdir "$work/out"
  case $scenario in
  load) "$QUAY_PROGRAM" load "$model" --to cuda:0 --json --sha256 ;;
  copy) "$QUAY_PROGRAM" copy "$work/source" "$work/out/copy" --via cuda:0 --no-progress ;;
  *) echo "cuda_sweep.sh: no scenario is called $scenario" >&2 && exit 2 ;;
  esac >"$work/stdout" 2>"$work/stderr"
}

# What of a run must not depend on failures: times and rates do.
result() {
  sed -E 's/"(seconds|gbps)": *[^,}]*//g; s/[0-9.]+ s, [0-9.]+ GB\/s//' "$work/stdout"
  find "$work/out" -type f -printf '%f ' -exec sha256sum {} + | sed "s|$work||"
}

# A number of the driver's report.
reported() {
  sed -n "s/^$1 //p" "$SIMCUDA_REPORT"
}

complain() {
  echo "$scenario, call $n answers $code: $1"
  sed 's/^/  stderr: /' "$work/stderr" | head -n 20
  bad=$((bad + 1))
}

# A failed run leaves no file, or, if only the last step failed and the message says so, a whole one.
left_nothing_partial() {
  [[ -n $(ls -A "$work/out") ]] || return 0
  [[ $(ls -A "$work/out") == copy ]] && cmp -s "$work/source" "$work/out/copy" &&
    grep -q 'in place' "$work/stderr"
}

check() {
  local status=$1 left
  case $status in
  0)
    [[ $(result) == "$expected" ]] || complain "succeeded with another result"
    ;;
  1)
    [[ $code -eq 700 || $(wc -l <"$work/stderr") -eq 1 ]] || complain "not exactly one line on stderr"
    [[ -s $work/stderr ]] || complain "no message"
    grep -qv '^quay: ' "$work/stderr" && complain "a line that does not begin with quay:"
    left_nothing_partial || complain "left a file behind"
    failed=$((failed + 1))
    ;;
  *) complain "status $status" ;;
  esac
  # A lost device takes nothing back.
  left=$(sed -nE '/^(calls|failed) /!{/ 0$/!p}' "$SIMCUDA_REPORT" | tr '\n' ' ')
  [[ -z $left || $code -eq 700 ]] || grep -qE 'lost|not freed|given back|destroyed' "$work/stderr" ||
    complain "left in the driver: $left"
}

bad=0
failed=0
runs=0
n=0
code=0
codes=(999)
first=${QUAY_TEST_SWEEP_FIRST:-1}
step=3
[[ -z ${QUAY_TEST_FULL:-} ]] || { codes=(999 2 700) && first=1 && step=1; }
export QUAY_COPY_THREADS=1
unset SIMCUDA_FAIL
run_scenario || { echo "fails without a failing call" && cat "$work/stderr" && exit 1; }
expected=$(result)
for code in "${codes[@]}"; do
  for ((n = first; ; n += step)); do
    export SIMCUDA_FAIL=$n:$code
    status=0
    run_scenario || status=$?
    [[ $(reported failed) != 0 ]] || break
    runs=$((runs + 1))
    check "$status"
    [[ $bad -lt 10 ]] || break 2
  done
done
echo "$scenario: $runs runs with a failing call, $failed of them failed cleanly, $bad wrongly"
[[ $bad -eq 0 && $failed -gt 0 ]]
