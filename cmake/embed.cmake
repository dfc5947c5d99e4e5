# quay_embed_text(TARGET file symbol)
#   Compiles the text file into TARGET as `const char symbol[]`, NUL-terminated.
function(quay_embed_text target file symbol)
  cmake_path(ABSOLUTE_PATH file)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} text)
  string(REPLACE "\\" "\\\\" text "${text}")
  string(REPLACE "\"" "\\\"" text "${text}")
  string(REPLACE "\n" "\\n\"\n    \"" text "${text}")
  cmake_path(GET file FILENAME name)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${target}_${name}.c)
  file(CONFIGURE OUTPUT ${output} @ONLY CONTENT
    "/* @name@, compiled in. */\nextern const char @symbol@[];\nconst char @symbol@[] =\n    \"@text@\";\n")
  target_sources(${target} PRIVATE ${output})
  # Longer than the 4095 characters that ISO C promises.
  set_source_files_properties(${output} PROPERTIES COMPILE_OPTIONS -Wno-overlength-strings)
endfunction()
