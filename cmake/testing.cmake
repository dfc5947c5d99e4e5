# The functions that tests are added with.
#
#   quay_add_test(NAME unit.dtype SOURCES dtype.c
#                 [LIBRARIES lib...] [LABELS label...] [ARGUMENTS arg...]
#                 [ENVIRONMENT VAR=value...] [TIMEOUT seconds] [RESOURCE name] [SERIAL]
#                 [SIMCUDA] [VULKAN])
#     A program of Criterion tests and one run of it. The program is named test_unit_dtype.
#
#   quay_add_test_run(NAME contract.track+cpu PROGRAM test_contract ...the same options)
#     One more run of a program that is built already, with another environment.
#
#   quay_add_script_test(NAME cli.load SCRIPT load.sh ...the same options)
#     A bash script; it finds the program in $QUAY_PROGRAM and the files in $QUAY_TEST_DATA.
#
#   quay_add_fuzzer(NAME spec SOURCES spec.c [LIBRARIES lib...] [DICTIONARY file])
#     A libFuzzer target where QUAY_BUILD_FUZZERS is on, and everywhere else a test fuzz.spec that
#     replays tests/fuzz/corpus/spec.
#
# SIMCUDA: the CUDA driver that the test finds is the simulated one (tests/sim_cuda), and what that
# reports at exit makes the test fail. Programs may take its control functions from
# sim_cuda/control.h. Without VULKAN, too, the test finds no Vulkan.
#
# VULKAN: the Vulkan loader that the test finds is the shim before the real one
# (tests/support/vulkan_shim), and a message of the validation layer makes the test fail: but under a
# sanitizer, where the layer stays off, since it leaks and races itself. Without a Vulkan device the
# tests are skipped.
#
# RESOURCE names something that only one test at a time may use (a device, a large amount of memory).

# Criterion's own process model hides leaks from LeakSanitizer and does not start under
# ThreadSanitizer, so instrumented builds take the runner of tests/support/plain_runner.
if(QUAY_SANITIZE)
  set(quay_plain_runner ON)
else()
  set(quay_plain_runner OFF)
endif()

# Generous: a test that hangs ends, and none that is slow on a busy machine does.
set(quay_test_timeout 300)
if(QUAY_SANITIZE)
  set(quay_test_timeout 900)
endif()

# allocator_may_return_null: sizes that no machine has are part of the tests. die_after_fork: the
# library makes new worker threads after fork(). atexit_sleep_ms: each test is a process, which would
# else sleep for a second at its end if it has threads.
set(quay_test_environment
  "CRITERION_JOBS=1"
  "ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1:detect_stack_use_after_return=1:strict_string_checks=1"
  "UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1"
  "LSAN_OPTIONS=print_suppressions=0:suppressions=${CMAKE_CURRENT_LIST_DIR}/../tests/support/lsan.supp"
  "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:die_after_fork=0:atexit_sleep_ms=100:allocator_may_return_null=1:suppressions=${CMAKE_CURRENT_LIST_DIR}/../tests/support/tsan.supp"
  "QUAY_PROGRAM=${PROJECT_BINARY_DIR}/tools/quay/quay"
  "QUAY_SOURCE_DIR=${PROJECT_SOURCE_DIR}"
  "QUAY_TEST_DATA=${PROJECT_SOURCE_DIR}/tests/data")

# ThreadSanitizer of older compilers cannot run where the kernel spreads mappings over more bits than
# 28; setarch turns that off for the tests.
set(quay_test_launcher)
if(QUAY_SANITIZE MATCHES "thread" AND EXISTS /proc/sys/vm/mmap_rnd_bits)
  file(STRINGS /proc/sys/vm/mmap_rnd_bits mmap_rnd_bits)
  find_program(SETARCH_PROGRAM setarch)
  mark_as_advanced(SETARCH_PROGRAM)
  if(mmap_rnd_bits GREATER 28 AND SETARCH_PROGRAM)
    set(quay_test_launcher ${SETARCH_PROGRAM} -R)
  endif()
endif()

# Most of what the tests of C programs take are the first touches of large memory, which huge pages and
# memory that free() does not give back make rare. The program quay runs as its users run it, and the
# sanitizers' own malloc knows none of this.
set(quay_malloc_environment)
if(NOT QUAY_SANITIZE)
  set(quay_malloc_environment "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"
    "MALLOC_MMAP_THRESHOLD_=33554432" "MALLOC_TRIM_THRESHOLD_=1073741824" "MALLOC_TOP_PAD_=16777216")
endif()

set(quay_vulkan_environment "QUAY_VULKAN_LIBRARY=$<TARGET_FILE:quay_vulkan_shim>")
if(QUAY_SANITIZE)
  list(APPEND quay_vulkan_environment "VKSHIM_VALIDATE=0")
else()
  list(APPEND quay_vulkan_environment "VKSHIM_VALIDATE=1")
endif()

# Sweeps over failing calls take every third one; the builds begin at different ones.
set(quay_sweep_first 3)
if(QUAY_SANITIZE MATCHES "address")
  set(quay_sweep_first 2)
elseif(CMAKE_BUILD_TYPE STREQUAL "Debug" AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
  set(quay_sweep_first 1)
endif()
list(APPEND quay_test_environment "QUAY_TEST_SWEEP_FIRST=${quay_sweep_first}")

# Options that all kinds of tests share, applied to the registered test `name`.
function(quay_set_test_properties name labels environment timeout resource serial)
  # The label of the first part of the name comes for free: unit, contract, cli ...
  string(REGEX MATCH "^[^.]+" kind "${name}")
  list(PREPEND labels ${kind})
  list(REMOVE_DUPLICATES labels)
  if(kind MATCHES "^(unit|contract|gpu|sim_cuda)$")
    list(APPEND environment ${quay_malloc_environment})
  endif()
  if(NOT timeout)
    set(timeout ${quay_test_timeout})
  endif()
  set_tests_properties(${name} PROPERTIES
    ENVIRONMENT "${quay_test_environment};${environment}"
    LABELS "${labels}"
    TIMEOUT ${timeout}
    # Criterion takes a test for passed before its teardown runs: what fails there is only printed.
    FAIL_REGULAR_EXPRESSION "Assertion Failed;during its setup or teardown")
  # What the user has set for himself must not change what the tests see.
  if(NOT environment MATCHES "QUAY_BACKEND=")
    set_tests_properties(${name} PROPERTIES ENVIRONMENT_MODIFICATION "QUAY_BACKEND=unset:")
  endif()
  if(resource)
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK "${resource}")
  endif()
  if(serial)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

set(quay_test_one_value NAME PROGRAM SCRIPT TIMEOUT RESOURCE)
set(quay_test_many_values SOURCES LIBRARIES LABELS ARGUMENTS ENVIRONMENT)

macro(quay_parse_test_arguments)
  cmake_parse_arguments(PARSE_ARGV 0 arg "SERIAL;SIMCUDA;VULKAN" "${quay_test_one_value}"
    "${quay_test_many_values}")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(arg_SIMCUDA)
    list(APPEND arg_ENVIRONMENT "QUAY_CUDA_LIBRARY=$<TARGET_FILE:quay_simcuda>"
      "SIMCUDA_STRICT=1")
  endif()
  if(arg_VULKAN)
    list(APPEND arg_ENVIRONMENT ${quay_vulkan_environment})
  elseif(arg_SIMCUDA)
    # An allocator that can't be opened names what else is there: sweeps over failing calls would load
    # every Vulkan driver of the machine a thousand times.
    list(APPEND arg_ENVIRONMENT "QUAY_VULKAN_LIBRARY=/no/vulkan/beside/simulated/cuda.so")
  endif()
endmacro()

# A program of tests, without a run of it. PLAIN: with the runner of tests/support/plain_runner in every
# build, whose --no-fork runs all tests in one process.
function(quay_add_test_program program)
  cmake_parse_arguments(PARSE_ARGV 1 arg "PLAIN" "" "SOURCES;LIBRARIES")
  set(support quay_test_support)
  if(arg_PLAIN)
    set(support quay_test_support_plain)
  endif()
  add_executable(${program} ${arg_SOURCES})
  quay_target_defaults(${program})
  target_link_libraries(${program} PRIVATE ${support} ${arg_LIBRARIES})
  # Criterion's macros are not written for these two.
  target_compile_options(${program} PRIVATE
    $<$<COMPILE_LANGUAGE:C>:-Wno-missing-prototypes>
    $<$<COMPILE_LANGUAGE:C>:-Wno-null-dereference>)
endfunction()

function(quay_add_test_run)
  quay_parse_test_arguments()
  add_test(NAME ${arg_NAME}
    COMMAND ${quay_test_launcher} $<TARGET_FILE:${arg_PROGRAM}> ${arg_ARGUMENTS}
    WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
  quay_set_test_properties(${arg_NAME} "${arg_LABELS}" "${arg_ENVIRONMENT}" "${arg_TIMEOUT}"
    "${arg_RESOURCE}" "${arg_SERIAL}")
endfunction()

function(quay_add_test)
  quay_parse_test_arguments()
  string(MAKE_C_IDENTIFIER "test_${arg_NAME}" program)
  quay_add_test_program(${program} SOURCES ${arg_SOURCES} LIBRARIES ${arg_LIBRARIES})
  set(serial)
  if(arg_SERIAL)
    set(serial SERIAL)
  endif()
  if(arg_SIMCUDA)
    add_dependencies(${program} quay_simcuda)
    target_link_libraries(${program} PRIVATE quay_simcuda_control)
  endif()
  if(arg_VULKAN)
    add_dependencies(${program} quay_vulkan_shim)
    target_link_libraries(${program} PRIVATE quay_vulkan_shim_control)
  endif()
  quay_add_test_run(NAME ${arg_NAME} PROGRAM ${program} LABELS ${arg_LABELS}
    ARGUMENTS ${arg_ARGUMENTS} ENVIRONMENT ${arg_ENVIRONMENT} TIMEOUT ${arg_TIMEOUT}
    RESOURCE ${arg_RESOURCE} ${serial})
endfunction()

function(quay_add_script_test)
  quay_parse_test_arguments()
  find_program(BASH_PROGRAM bash REQUIRED)
  mark_as_advanced(BASH_PROGRAM)
  cmake_path(ABSOLUTE_PATH arg_SCRIPT)
  add_test(NAME ${arg_NAME} COMMAND ${quay_test_launcher} ${BASH_PROGRAM} ${arg_SCRIPT}
    ${arg_ARGUMENTS} WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
  quay_set_test_properties(${arg_NAME} "${arg_LABELS}" "${arg_ENVIRONMENT}" "${arg_TIMEOUT}"
    "${arg_RESOURCE}" "${arg_SERIAL}")
endfunction()

function(quay_add_fuzzer)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;DICTIONARY" "SOURCES;LIBRARIES")
  set(program fuzz_${arg_NAME})
  set(corpus ${CMAKE_CURRENT_SOURCE_DIR}/corpus/${arg_NAME})
  add_executable(${program} ${arg_SOURCES})
  quay_target_defaults(${program})
  target_compile_options(${program} PRIVATE $<$<COMPILE_LANGUAGE:C>:-Wno-missing-prototypes>)
  target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR}/src
    ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${program} PRIVATE quay::quay ${arg_LIBRARIES})
  if(QUAY_BUILD_FUZZERS)
    target_link_options(${program} PRIVATE -fsanitize=fuzzer)
    set(dictionary)
    if(arg_DICTIONARY)
      cmake_path(ABSOLUTE_PATH arg_DICTIONARY OUTPUT_VARIABLE dictionary)
    endif()
    # One line per fuzzer, which scripts/test reads: program, corpus, dictionary.
    set_property(GLOBAL APPEND PROPERTY QUAY_FUZZERS
      "$<TARGET_FILE:${program}>|${corpus}|${dictionary}")
  else()
    target_sources(${program} PRIVATE ${PROJECT_SOURCE_DIR}/tests/fuzz/replay.c
      ${PROJECT_SOURCE_DIR}/tests/support/random.c)
    quay_add_test_run(NAME fuzz.${arg_NAME} PROGRAM ${program} ARGUMENTS ${corpus})
  endif()
endfunction()
