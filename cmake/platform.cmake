# Where Quay works: Linux on 64-bit x86 and Arm. Anything else is refused here, with the reason.
if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(FATAL_ERROR
    "Quay supports Linux on x86-64 and aarch64; this build targets ${CMAKE_SYSTEM_NAME}")
endif()
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64|aarch64|arm64)$"
   OR NOT CMAKE_SIZEOF_VOID_P EQUAL 8)
  math(EXPR bits "${CMAKE_SIZEOF_VOID_P} * 8")
  message(FATAL_ERROR "Quay supports Linux on x86-64 and aarch64, 64-bit; "
    "this build targets ${CMAKE_SYSTEM_PROCESSOR}, ${bits}-bit")
endif()
