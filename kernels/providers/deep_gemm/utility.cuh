// What DeepGEMM's templates take from <utility>, which NVRTC does not have: the compiler is given this file under that
// name. std::move and std::forward are NVRTC's own.
#pragma once
#include <cuda/std/type_traits>
#include <cuda/std/utility>

namespace std {
using cuda::std::integer_sequence;
using cuda::std::is_same_v;
using cuda::std::make_integer_sequence;
}  // namespace std
