/* What the validation layer says, and what the shim itself finds wrong: told at once, and at the
 * end of the process by its status. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shim.h"

/* Messages that are not about a mistake. */
static const char *const known[] = {
    /* A device may be told to be slow or odd with something that is right. */
    "UNASSIGNED-BestPractices",
    /* The loader tells what it loads. */
    "Loader Message",
};

static unsigned violations;

void shim_violation(const char *format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fprintf(stderr, "vkshim: %s\n", text);
  __atomic_fetch_add(&violations, 1, __ATOMIC_RELAXED);
}

/* The layer knows the device's own heap, not the size that the shim gives out for it. */
static bool is_of_heap_size(const char *id) {
  return shim.settings.heap_bytes != 0 &&
         strcmp(id, "VUID-vkAllocateMemory-pAllocateInfo-01713") == 0;
}

static bool is_known(const char *id) {
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    if (strncmp(id, known[i], strlen(known[i])) == 0)
      return true;
  }
  return false;
}

static VKAPI_ATTR VkBool32 VKAPI_CALL hear(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                           VkDebugUtilsMessageTypeFlagsEXT types,
                                           const VkDebugUtilsMessengerCallbackDataEXT *data,
                                           void *user) {
  const char *const id = data->pMessageIdName != NULL ? data->pMessageIdName : "";
  (void)severity;
  (void)types;
  (void)user;
  if (!is_known(id) && !is_of_heap_size(id))
    shim_violation("%s", data->pMessage != NULL ? data->pMessage : id);
  return VK_FALSE;
}

static const VkDebugUtilsMessengerCreateInfoEXT messenger = {
    .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
    .messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT |
                       VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
    .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_GENERAL_BIT_EXT |
                   VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT |
                   VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT,
    .pfnUserCallback = hear,
};

VkResult shim_create_validated(const VkInstanceCreateInfo *info,
                               const VkAllocationCallbacks *allocator, VkInstance *out_instance) {
  static const char *const layers[] = {"VK_LAYER_KHRONOS_validation"};
  static const char *const extensions[] = {VK_EXT_DEBUG_UTILS_EXTENSION_NAME,
                                           VK_EXT_VALIDATION_FEATURES_EXTENSION_NAME};
  static const VkValidationFeatureEnableEXT enabled[] = {
      VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT};
  VkDebugUtilsMessengerCreateInfoEXT early = messenger;
  early.pNext = info->pNext;
  const VkValidationFeaturesEXT features = {
      .sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
      .pNext = &early,
      .enabledValidationFeatureCount = 1,
      .pEnabledValidationFeatures = enabled,
  };
  VkInstanceCreateInfo with = *info;
  with.pNext = &features;
  with.enabledLayerCount = 1;
  with.ppEnabledLayerNames = layers;
  with.enabledExtensionCount = 2;
  with.ppEnabledExtensionNames = extensions;
  if (info->enabledLayerCount != 0 || info->enabledExtensionCount != 0)
    shim_violation("an instance with layers or extensions: the shim can't add its own");
  PFN_vkCreateInstance create = (PFN_vkCreateInstance)shim.get(NULL, "vkCreateInstance");
  return create(&with, allocator, out_instance);
}

static VkDebugUtilsMessengerEXT listener; /* of the last instance */

void shim_messages_begin(VkInstance instance) {
  PFN_vkCreateDebugUtilsMessengerEXT create =
      (PFN_vkCreateDebugUtilsMessengerEXT)shim.get(instance, "vkCreateDebugUtilsMessengerEXT");
  if (create == NULL || create(instance, &messenger, NULL, &listener) != VK_SUCCESS)
    shim_violation("the validation layer can't be listened to");
}

void shim_messages_end(VkInstance instance) {
  PFN_vkDestroyDebugUtilsMessengerEXT destroy =
      (PFN_vkDestroyDebugUtilsMessengerEXT)shim.get(instance, "vkDestroyDebugUtilsMessengerEXT");
  if (destroy != NULL)
    destroy(instance, listener, NULL);
}

/* The library is never unloaded, so this is the end of the process. */
__attribute__((destructor)) static void tell_at_exit(void) {
  if (__atomic_load_n(&violations, __ATOMIC_RELAXED) == 0)
    return;
  fprintf(stderr, "vkshim: %u messages\n", violations);
  fflush(NULL);
  _exit(VKSHIM_EXIT);
}
