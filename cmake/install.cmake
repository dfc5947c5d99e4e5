# What `cmake --install` puts where: headers, libraries, the CMake package, pkg-config files. The
# program, its manual page and its completion are installed by tools/quay.
include(CMakePackageConfigHelpers)

set(quay_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/quay)

# A 0.x release may change the ABI with its minor version.
set(quay_library_properties
  VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

set_target_properties(quay PROPERTIES ${quay_library_properties})
install(TARGETS quay EXPORT quay-targets)
install(EXPORT quay-targets NAMESPACE quay:: DESTINATION ${quay_package_dir})

set(without_header)
if(TARGET quay_safetensors)
  set_target_properties(quay_safetensors PROPERTIES ${quay_library_properties}
    EXPORT_NAME safetensors INSTALL_RPATH $ORIGIN)
  install(TARGETS quay_safetensors EXPORT quay-safetensors-targets)
  install(EXPORT quay-safetensors-targets NAMESPACE quay:: DESTINATION ${quay_package_dir})
  install(FILES ${PROJECT_SOURCE_DIR}/cmake/FindJansson.cmake DESTINATION ${quay_package_dir})
else()
  set(without_header PATTERN safetensors.h EXCLUDE)
endif()

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/quay DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" ${without_header})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/quay-config.cmake.in
  ${PROJECT_BINARY_DIR}/cmake/quay-config.cmake INSTALL_DESTINATION ${quay_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/quay-config-version.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/cmake/quay-config.cmake
  ${PROJECT_BINARY_DIR}/cmake/quay-config-version.cmake
  DESTINATION ${quay_package_dir})

# The flags that a static link needs besides the library itself, from what the target links.
function(quay_private_link_flags target out_flags)
  get_target_property(libraries ${target} LINK_LIBRARIES)
  set(flags)
  foreach(library IN LISTS libraries)
    if(library STREQUAL "Threads::Threads")
      list(APPEND flags -pthread)
    elseif(library MATCHES "^[a-z][a-z0-9_]*$" AND NOT TARGET ${library})
      list(APPEND flags -l${library})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES flags)
  list(JOIN flags " " flags)
  set(${out_flags} "${flags}" PARENT_SCOPE)
endfunction()

function(quay_install_pkg_config name target)
  # Paths relative to the file itself, so that an installed tree can be moved.
  if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
    set(pc_prefix "${CMAKE_INSTALL_PREFIX}")
    set(pc_libdir "${CMAKE_INSTALL_FULL_LIBDIR}")
    set(pc_includedir "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
  else()
    file(RELATIVE_PATH up "/x/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/x")
    string(REGEX REPLACE "/$" "" up "${up}")
    set(pc_prefix "\${pcfiledir}/${up}")
    set(pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
    set(pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
  endif()
  quay_private_link_flags(${target} pc_libs_private)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/cmake/${name}.pc
    @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/cmake/${name}.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

quay_install_pkg_config(quay quay)
if(TARGET quay_safetensors)
  quay_install_pkg_config(quay-safetensors quay_safetensors)
endif()
