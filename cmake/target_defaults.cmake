# quay_target_defaults(TARGET): language level, warnings and visibility of Quay's own targets.
# Nothing of it reaches a program that links Quay.

include(CheckCCompilerFlag)

set(quay_c_warnings
  -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wswitch-enum -Wstrict-prototypes
  -Wmissing-prototypes -Wcast-align -Wdouble-promotion -Wformat=2 -Wnull-dereference
  -Wold-style-definition -Wpointer-arith -Wundef -Wvla -Wwrite-strings)
set(quay_cxx_warnings -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wundef)
set(quay_gcc_only_warnings -Wduplicated-branches -Wduplicated-cond -Wlogical-op)
set(quay_clang_only_warnings -Wcomma -Wimplicit-fallthrough -Wunreachable-code)

function(quay_target_defaults target)
  set(c_warnings ${quay_c_warnings})
  if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
    list(APPEND c_warnings ${quay_gcc_only_warnings} -Wimplicit-fallthrough=5)
    # Its flow analysis loses its way in instrumented code and warns about it.
    if(QUAY_SANITIZE OR QUAY_COVERAGE)
      list(REMOVE_ITEM c_warnings -Wnull-dereference)
      list(APPEND c_warnings -Wno-maybe-uninitialized)
    endif()
  else()
    list(APPEND c_warnings ${quay_clang_only_warnings})
  endif()
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:C>:${c_warnings}>
    $<$<COMPILE_LANGUAGE:CXX>:${quay_cxx_warnings}>
    $<$<BOOL:${QUAY_WERROR}>:-Werror>)
  # GNU names (gettid, process_vm_readv, MAP_ANONYMOUS); the language itself stays ISO C11.
  target_compile_definitions(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:C>:_GNU_SOURCE>
    QUAY_WITH_CUDA=$<BOOL:${QUAY_CUDA}>
    QUAY_WITH_VULKAN=$<BOOL:${quay_vulkan}>
    QUAY_WITH_SAFETENSORS=$<BOOL:${QUAY_SAFETENSORS}>)
  set_target_properties(${target} PROPERTIES
    C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF
    C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden
    POSITION_INDEPENDENT_CODE ON)
endfunction()
