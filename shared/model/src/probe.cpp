// What tch lacks: libtorch's own accounts of memory and of operators, by its documented hooks.
//
// Both are of the thread that asks for them, so nothing here is locked. What can fail catches all
// exceptions, returns null and writes the message; what reads and ends throws none.

#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "shim.h"

namespace {

// Bytes of one kind of device that this thread has allocated and not given back.
struct Account final : c10::MemoryReportingInfoBase {
  explicit Account(c10::DeviceType of) : type(of) {}

  void reportMemoryUsage(void *, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (device.type() != type) return;
    live += bytes;
    peak = std::max(peak, live);
  }

  bool memoryProfilingEnabled() const override { return true; }

  c10::DeviceType type;
  int64_t live = 0;
  int64_t peak = 0;
};

struct Watch {
  explicit Watch(c10::DeviceType type)
      : account(std::make_shared<Account>(type)),
        guard(c10::DebugInfoKind::PROFILER_STATE, account) {}

  std::shared_ptr<Account> account;
  c10::DebugInfoGuard guard;
};

using Clock = std::chrono::steady_clock;

struct Totals {
  uint64_t calls = 0;
  uint64_t open = 0;  // an operator may call itself: its time counts once
  uint64_t total_ns = 0;
  uint64_t self_ns = 0;
};

struct Open {
  Totals *totals;
  Clock::time_point began;
  uint64_t within_ns;  // of the operators that it called
};

struct Recording {
  std::unordered_map<std::string, Totals> by_name;
  std::vector<Open> stack;
  at::CallbackHandle handle = 0;
};

thread_local Recording *recording = nullptr;

std::unique_ptr<at::ObserverContext> on_enter(const at::RecordFunction &function) {
  if (recording != nullptr) {
    Totals &totals = recording->by_name[function.name()];
    totals.open += 1;
    recording->stack.push_back({&totals, Clock::now(), 0});
  }
  return nullptr;
}

void on_exit(const at::RecordFunction &, at::ObserverContext *) {
  if (recording == nullptr || recording->stack.empty()) return;
  const Open done = recording->stack.back();
  recording->stack.pop_back();
  const auto took = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - done.began);
  const auto took_ns = static_cast<uint64_t>(took.count());
  Totals &totals = *done.totals;
  totals.calls += 1;
  totals.open -= 1;
  totals.self_ns += took_ns - std::min(took_ns, done.within_ns);
  if (totals.open == 0) totals.total_ns += took_ns;
  if (!recording->stack.empty()) recording->stack.back().within_ns += took_ns;
}

}  // namespace

extern "C" {

Watch *fresco_memory_watch(bool is_cuda, char *message, size_t capacity) {
  return guarded(message, capacity, [&] {
    return new Watch(is_cuda ? c10::DeviceType::CUDA : c10::DeviceType::CPU);
  });
}

// On the thread that it was made on.
void fresco_memory_unwatch(Watch *watch) { delete watch; }

// The peak starts anew from what is live.
void fresco_memory_take(Watch *watch, int64_t *live, int64_t *peak) {
  Account &account = *watch->account;
  *live = account.live;
  *peak = account.peak;
  account.peak = account.live;
}

Recording *fresco_operators_record(char *message, size_t capacity) {
  return guarded(message, capacity, [&]() -> Recording * {
    if (recording != nullptr) throw std::runtime_error("this thread is being recorded already");
    auto made = std::make_unique<Recording>();
    auto callback = at::RecordFunctionCallback(on_enter, on_exit)
                        .scopes({at::RecordScope::FUNCTION});
    made->handle = at::addThreadLocalCallback(callback);
    recording = made.get();
    return made.release();
  });
}

// Ends it, on the thread that it was made on, and shows every operator.
void fresco_operators_finish(Recording *finished, void *to,
                             void (*show)(void *to, const char *name, size_t bytes, uint64_t calls,
                                          uint64_t self_ns, uint64_t total_ns)) {
  const std::unique_ptr<Recording> owned(finished);
  recording = nullptr;
  at::removeCallback(owned->handle);
  for (const auto &[name, totals] : owned->by_name) {
    show(to, name.data(), name.size(), totals.calls, totals.self_ns, totals.total_ns);
  }
}

}  // extern "C"
