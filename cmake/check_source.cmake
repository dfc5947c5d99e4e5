# Checks rules about the source that no compiler knows.
#   cmake -DSOURCE_DIR=. -P check_source.cmake
cmake_minimum_required(VERSION 3.25)

cmake_path(ABSOLUTE_PATH SOURCE_DIR)
set(bad)

# Reports each line of the files matching `pattern`, except in files whose path matches `allowed`.
function(forbid pattern why allowed)
  foreach(file IN LISTS ARGN)
    cmake_path(RELATIVE_PATH file BASE_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE name)
    if(allowed AND name MATCHES "${allowed}")
      continue()
    endif()
    file(STRINGS ${file} lines REGEX "${pattern}")
    foreach(line IN LISTS lines)
      string(STRIP "${line}" line)
      string(APPEND bad "\n  ${name}: ${why}: ${line}")
    endforeach()
  endforeach()
  set(bad "${bad}" PARENT_SCOPE)
endfunction()

file(GLOB_RECURSE library ${SOURCE_DIR}/src/*.[ch] ${SOURCE_DIR}/include/*.h)
file(GLOB_RECURSE tests ${SOURCE_DIR}/tests/*.[ch])
if(NOT library)
  message(FATAL_ERROR "no sources under ${SOURCE_DIR}")
endif()

set(before "(^|[^A-Za-z0-9_.>\"])")
forbid("${before}(secure_)?getenv *\\(" "the environment is read in src/core/environment.c alone"
  "^src/core/environment\\.c$" ${library})
forbid("${before}environ *[;[]" "the environment is read in src/core/environment.c alone"
  "^src/core/environment\\.c$" ${library})
forbid("${before}(abort|exit|_exit|_Exit|assert) *\\(" "the library never ends the program" ""
  ${library})
forbid("${before}(printf|puts|putchar|perror|vprintf) *\\(" "the library never prints" ""
  ${library})
forbid("${before}(signal|sigaction) *\\(" "the library installs no signal handler" "" ${library})
forbid("__attribute__ *\\(\\(constructor" "the library has no static constructors" "" ${library})
forbid("${before}cr_skip(_test)? *\\(" "use quay_test_skip, which obeys QUAY_TEST_FAIL_ON_SKIP"
  "^tests/support/" ${tests})

if(bad)
  message(FATAL_ERROR "rules of the source are broken:${bad}")
endif()
message(STATUS "the rules of the source hold")
