# Checks the global symbols of an archive: each starts with quay_, and one that does not start with
# quay__ (internal) is declared in a public header.
#   cmake -DARCHIVE=libquay.a -DHEADERS=include/quay -DNM=nm -P check_symbols.cmake
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND ${NM} -g --defined-only --format=posix ${ARCHIVE}
  OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)

file(GLOB headers ${HEADERS}/*.h)
set(public_text)
foreach(header IN LISTS headers)
  file(READ ${header} text)
  string(APPEND public_text "${text}")
endforeach()

string(REGEX MATCHALL "(^|\n)[^ \n]+ [A-Zu]" lines "${output}")
set(count 0)
set(bad)
foreach(line IN LISTS lines)
  string(REGEX REPLACE "^\n?([^ ]+) .$" "\\1" symbol "${line}")
  math(EXPR count "${count} + 1")
  if(NOT symbol MATCHES "^quay_")
    string(APPEND bad "\n  ${symbol}: does not start with quay_")
  elseif(NOT symbol MATCHES "^quay__" AND NOT public_text MATCHES "[^a-z0-9_]${symbol}[^a-z0-9_]")
    string(APPEND bad "\n  ${symbol}: in no public header; an internal name starts with quay__")
  endif()
endforeach()
if(count EQUAL 0)
  message(FATAL_ERROR "${ARCHIVE}: no global symbols found")
endif()
if(bad)
  message(FATAL_ERROR "${ARCHIVE}:${bad}")
endif()
message(STATUS "${ARCHIVE}: ${count} global symbols, all named as they should be")
