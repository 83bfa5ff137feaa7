// What tch lacks: a random generator that is an object of its own. tch draws from one generator
// for the whole process, so that two requests in one process would disturb each other.
//
// Every function catches all exceptions; on failure it returns null and writes the message.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <cstdint>

#include "shim.h"

extern "C" {

at::Generator *fresco_generator_new(uint64_t seed, char *message, size_t capacity) {
  return guarded(message, capacity, [&] {
    return new at::Generator(at::detail::createCPUGenerator(seed));
  });
}

void fresco_generator_free(at::Generator *generator) { delete generator; }

at::Tensor *fresco_randn(at::Generator *generator, const int64_t *size, size_t dims,
                         char *message, size_t capacity) {
  return guarded(message, capacity, [&] {
    return new at::Tensor(
        at::randn(at::IntArrayRef(size, dims), *generator, at::TensorOptions(at::kFloat)));
  });
}

at::Tensor *fresco_multinomial(at::Generator *generator, const at::Tensor *probabilities,
                               char *message, size_t capacity) {
  return guarded(message, capacity, [&] {
    return new at::Tensor(
        at::multinomial(*probabilities, 1, /*replacement=*/false, *generator));
  });
}

}  // extern "C"
