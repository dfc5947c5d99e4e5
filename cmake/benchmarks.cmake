# quay_add_benchmark(NAME copy SOURCES copy.cpp [LIBRARIES lib...])
#   A Google Benchmark program bench_copy, and, where tests are built, the test bench.copy that runs
#   each of its benchmarks once with QUAY_BENCH_SMOKE=1 (use small sizes then), so that it keeps
#   working.
find_package(benchmark REQUIRED)

function(quay_add_benchmark)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "SOURCES;LIBRARIES")
  set(program bench_${arg_NAME})
  add_executable(${program} ${arg_SOURCES})
  quay_target_defaults(${program})
  target_link_libraries(${program} PRIVATE quay::quay ${arg_LIBRARIES}
    benchmark::benchmark benchmark::benchmark_main)
  if(QUAY_BUILD_TESTS)
    quay_add_test_run(NAME bench.${arg_NAME} PROGRAM ${program}
      ARGUMENTS --benchmark_min_time=0.001 ENVIRONMENT QUAY_BENCH_SMOKE=1)
  endif()
endfunction()
