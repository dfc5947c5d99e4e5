// The functions of src/cuda/symbols.h against the versioned types of cudaTypedefs.h: each row's
// version must be there, with as many parameters, each of the same size and class.
#include <cudaTypedefs.h>

#include <type_traits>

extern "C" {
#include "cuda/abi.h"
}

namespace {

// What one parameter may be: an integer or enumeration of a size, or a pointer (to functions and
// handles alike), and what it points to, as far as the sizes go.
template <typename A, typename B> constexpr bool same_parameter() {
  if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
    using TargetA = std::remove_cv_t<std::remove_pointer_t<A>>;
    using TargetB = std::remove_cv_t<std::remove_pointer_t<B>>;
    if constexpr (std::is_arithmetic_v<TargetA> || std::is_enum_v<TargetA>)
      return sizeof(TargetA) == sizeof(TargetB) && !std::is_pointer_v<TargetB>;
    else
      return std::is_pointer_v<TargetA> == std::is_pointer_v<TargetB>;
  } else {
    return sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;
  }
}

template <typename Ours, typename Theirs> struct Same : std::false_type {};

template <typename... Ours, typename ResultA, typename... Theirs, typename ResultB>
struct Same<ResultA (*)(Ours...), ResultB (*)(Theirs...)> {
  static constexpr bool check() {
    if constexpr (sizeof...(Ours) != sizeof...(Theirs) || sizeof(ResultA) != sizeof(ResultB))
      return false;
    else
      return (same_parameter<Ours, Theirs>() && ...);
  }
  static constexpr bool value = check();
};

#define X(name, suffix, version, streams, need, parameters)                          \
  static_assert(Same<quay__cu_result(*) parameters, PFN_##name##_v##version>::value, \
                #name " is declared otherwise in cudaTypedefs.h");
#include "cuda/symbols.h"
#undef X

} // namespace
