// What every function of the shim is wrapped in: a C++ exception must not cross into Rust.

#pragma once

#include <cstddef>
#include <cstring>
#include <exception>
#include <stdexcept>

namespace {

inline void write_message(char *message, size_t capacity, const char *text) {
  if (capacity == 0) return;
  std::strncpy(message, text, capacity - 1);
  message[capacity - 1] = '\0';
}

template <typename F>
auto guarded(char *message, size_t capacity, F f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::exception &e) {
    write_message(message, capacity, e.what());
  } catch (...) {
    write_message(message, capacity, "an exception that is no std::exception");
  }
  return nullptr;
}

}  // namespace
