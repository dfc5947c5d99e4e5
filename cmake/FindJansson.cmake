# Finds the JSON library jansson: target jansson::jansson. Installed with Quay, whose static
# safetensors component needs it when a program is linked.
find_path(Jansson_INCLUDE_DIR jansson.h)
find_library(Jansson_LIBRARY jansson)
mark_as_advanced(Jansson_INCLUDE_DIR Jansson_LIBRARY)

if(Jansson_INCLUDE_DIR)
  file(STRINGS "${Jansson_INCLUDE_DIR}/jansson.h" Jansson_version_line
    REGEX "^#define JANSSON_VERSION +\"")
  string(REGEX REPLACE ".*\"([0-9.]+)\".*" "\\1" Jansson_VERSION "${Jansson_version_line}")
  unset(Jansson_version_line)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Jansson
  REQUIRED_VARS Jansson_LIBRARY Jansson_INCLUDE_DIR
  VERSION_VAR Jansson_VERSION
  REASON_FAILURE_MESSAGE "install libjansson-dev, or build Quay with QUAY_SAFETENSORS=OFF")

if(Jansson_FOUND AND NOT TARGET jansson::jansson)
  add_library(jansson::jansson UNKNOWN IMPORTED)
  set_target_properties(jansson::jansson PROPERTIES
    IMPORTED_LOCATION "${Jansson_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${Jansson_INCLUDE_DIR}")
endif()
