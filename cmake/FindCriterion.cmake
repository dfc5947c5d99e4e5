# Finds the test framework Criterion: target Criterion::Criterion.
find_path(Criterion_INCLUDE_DIR criterion/criterion.h)
find_library(Criterion_LIBRARY criterion)
mark_as_advanced(Criterion_INCLUDE_DIR Criterion_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Criterion
  REQUIRED_VARS Criterion_LIBRARY Criterion_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install libcriterion-dev, or run scripts/setup")

if(Criterion_FOUND AND NOT TARGET Criterion::Criterion)
  add_library(Criterion::Criterion UNKNOWN IMPORTED)
  set_target_properties(Criterion::Criterion PROPERTIES
    IMPORTED_LOCATION "${Criterion_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${Criterion_INCLUDE_DIR}")
endif()
