# Finds the headers of Vulkan, which the Vulkan backend is compiled with: VulkanHeaders_INCLUDE_DIR.
# CMake's own FindVulkan wants the loader's library, which Quay does not link.
find_path(VulkanHeaders_INCLUDE_DIR vulkan/vulkan_core.h)
mark_as_advanced(VulkanHeaders_INCLUDE_DIR)

if(VulkanHeaders_INCLUDE_DIR)
  set(header ${VulkanHeaders_INCLUDE_DIR}/vulkan/vulkan_core.h)
  file(STRINGS ${header} lines REGEX
    "^#define VK_HEADER_VERSION(_COMPLETE VK_MAKE_API_VERSION\\(0, 1, [0-9]+,| [0-9]+)")
  string(REGEX REPLACE ".*_COMPLETE VK_MAKE_API_VERSION\\(0, (1), ([0-9]+),.*" "\\1.\\2"
    VulkanHeaders_VERSION "${lines}")
  string(REGEX REPLACE ".*VK_HEADER_VERSION ([0-9]+).*" "\\1" patch "${lines}")
  string(APPEND VulkanHeaders_VERSION ".${patch}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(VulkanHeaders
  REQUIRED_VARS VulkanHeaders_INCLUDE_DIR
  VERSION_VAR VulkanHeaders_VERSION
  REASON_FAILURE_MESSAGE "install libvulkan-dev, or build Quay with QUAY_VULKAN=OFF")
