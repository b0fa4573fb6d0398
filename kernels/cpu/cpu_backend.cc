#include "kernels/cpu/cpu_backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include <optional>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cpu/copy_plan.h"

namespace nibble {

using cpu::CopyPlan;
using cpu::CopyScratch;
using cpu::CopyTotals;

absl::StatusOr<Buffer> HostMemory::Allocate(size_t bytes) {
  if (bytes == 0) return Buffer();
  // Whole huge pages for allocations of several: with small pages, tiles that walk down rows wait
  // for address translation. The kernel may decline.
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t unit = bytes >= 2 * kHugePage ? kHugePage : 64;
  const size_t size = (bytes + unit - 1) / unit * unit;
  void* data = nullptr;
  NIBBLE_RETURN_IF_ERROR(meter_.Take(bytes, data, [&] { return std::aligned_alloc(unit, size); }));
  if (unit == kHugePage) madvise(data, size, MADV_HUGEPAGE);
  return Buffer(this, data, bytes);
}

absl::Status HostMemory::CopyIn(void* device, const void* host, size_t bytes) {
  if (bytes > 0) std::memcpy(device, host, bytes);
  return absl::OkStatus();
}

absl::Status HostMemory::CopyOut(void* host, const void* device, size_t bytes) {
  if (bytes > 0) std::memcpy(host, device, bytes);
  return absl::OkStatus();
}

void HostMemory::Free(void* data) {
  meter_.Release(data);
  std::free(data);
}

namespace {

class CpuEvent : public Event {
 public:
  double seconds = 0;
};

double SteadySeconds() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

}  // namespace

absl::Status CpuQueue::CopyIn(void* device, const void* pinned, size_t bytes) {
  if (bytes > 0) std::memcpy(device, pinned, bytes);
  return absl::OkStatus();
}

absl::Status CpuQueue::CopyOut(void* pinned, const void* device, size_t bytes) {
  if (bytes > 0) std::memcpy(pinned, device, bytes);
  return absl::OkStatus();
}

absl::Status CpuQueue::Copy(const DeviceCopy& copy) {
  for (size_t line = 0; line < copy.lines && copy.line_bytes > 0; ++line) {
    std::memcpy(static_cast<char*>(copy.to) + line * copy.to_pitch,
                static_cast<const char*>(copy.from) + line * copy.from_pitch, copy.line_bytes);
  }
  return absl::OkStatus();
}

absl::Status CpuQueue::Record(Event& event) {
  static_cast<CpuEvent&>(event).seconds = clock_();
  return absl::OkStatus();
}

CpuBackend::CpuBackend(const Options& options, const cpu::LaneKernels& kernels)
    : memory_(options.memory_bytes),
      queue_(options.clock ? options.clock : SteadySeconds),
      pool_(options.threads),
      kernels_(kernels) {}

absl::StatusOr<std::unique_ptr<Event>> CpuBackend::NewEvent() {
  return std::make_unique<CpuEvent>();
}

absl::StatusOr<double> CpuBackend::SecondsBetween(const Event& begin, const Event& end) {
  return static_cast<const CpuEvent&>(end).seconds - static_cast<const CpuEvent&>(begin).seconds;
}

absl::StatusOr<std::unique_ptr<CpuBackend>> CpuBackend::Create(const Options& options) {
  if (options.threads < 0 || options.threads > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads: ", options.threads, " is not in 0 (every processor) to 1024"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const cpu::LaneKernels* kernels,
                          cpu::KernelsFor(options.isa.value_or(cpu::SupportedIsas().back())));
  return std::unique_ptr<CpuBackend>(new CpuBackend(options, *kernels));
}

std::string CpuBackend::Name() const {
  return absl::StrCat("cpu ", kernels_.name, ", ", pool_.threads(),
                      pool_.threads() == 1 ? " thread" : " threads");
}

namespace {

// How a request is cut. A task is a run of patches down the same columns, so that the cache lines
// of a transposed copy's scales are still present when the next patch adds to them; a patch is
// small enough that the second copy finds the source in the cache.
struct Grid {
  int64_t rows, cols, task_rows, patch_rows, patch_cols, across;

  int64_t tasks() const { return (rows + task_rows - 1) / task_rows * across; }
  template <class Do>
  void ForPatches(int64_t task, bool backwards, Do&& run) const {
    if (backwards) task = tasks() - 1 - task;
    const int64_t col = task % across * patch_cols;
    const int64_t first = task / across * task_rows;
    const int64_t end = std::min(rows, first + task_rows);
    const int64_t patches = (end - first + patch_rows - 1) / patch_rows;
    for (int64_t patch = 0; patch < patches; ++patch) {
      const int64_t row = first + (backwards ? patches - 1 - patch : patch) * patch_rows;
      run(row, col, std::min(patch_rows, end - row), std::min(patch_cols, cols - col));
    }
  }
};

Grid CutIntoPatches(const ConstMatrix& x, const std::vector<CopyPlan>& plans, int threads) {
  int64_t row_unit = 1;
  int64_t col_unit = 16;
  bool columns = false;
  bool factors = false;
  bool operands = true;
  for (const CopyPlan& plan : plans) {
    row_unit = std::max(row_unit, plan.row_unit());
    col_unit = std::max(col_unit, plan.col_unit());
    columns |= plan.columns();
    factors |= plan.uses_factors();
    operands &= plan.operand_only();
  }
  constexpr int64_t kTaskRows = 1024;
  // All are multiples of every unit. Row copies and operands stream along whole rows; the columns
  // of other copies are narrow, because of the lines of the transposed output. Operands take as
  // many rows as leave their source in a thread's second-level cache for the other copy; copies
  // with factors per group take few rows at a time, or the factors would evict the source from the
  // cache.
  const int64_t least_rows = std::max<int64_t>(row_unit, 16);
  const bool flat = (!columns && factors) || operands;
  const int64_t patch_cols = flat ? 8192 * 16 / least_rows : columns ? 512 : 8192;
  constexpr int64_t kOperandPatch = 128 << 10;  // elements
  int64_t patch_rows = flat ? least_rows : 128;
  const int64_t width = std::max<int64_t>(1, std::min(patch_cols, x.cols));
  while (operands && 2 * patch_rows * width <= kOperandPatch) patch_rows *= 2;
  Grid grid = {x.rows, x.cols, row_unit, 0, std::max(patch_cols, col_unit), 0};
  grid.across = (x.cols + grid.patch_cols - 1) / grid.patch_cols;
  // Rows per task: a whole number of patches once there are enough tasks for the threads.
  while (grid.task_rows < kTaskRows && grid.tasks() > 8 * threads) grid.task_rows *= 2;
  grid.patch_rows = std::min(grid.task_rows, patch_rows);
  return grid;
}

// Runs tasks of a first pass, then a function that needs all of them, once, then tasks of a second
// pass, with a single dispatch to the pool's threads. A thread that finds no more tasks of the
// first pass waits for those that other threads are running: all of them have begun.
void RunPasses(ThreadPool& pool, int64_t first_tasks,
               absl::FunctionRef<void(int64_t task, int thread)> first,
               absl::FunctionRef<void()> between, int64_t second_tasks,
               absl::FunctionRef<void(int64_t task, int thread)> second) {
  std::atomic<int64_t> next_first = 0, done_first = 0, next_second = 0;
  std::once_flag once;
  pool.ParallelFor(pool.threads(), [&](int64_t, int thread) {
    for (int64_t task; (task = next_first.fetch_add(1)) < first_tasks;) {
      first(task, thread);
      done_first.fetch_add(1, std::memory_order_release);
    }
    while (done_first.load(std::memory_order_acquire) < first_tasks) std::this_thread::yield();
    std::call_once(once, between);
    for (int64_t task; (task = next_second.fetch_add(1)) < second_tasks;) second(task, thread);
  });
}

}  // namespace

absl::Status CpuBackend::Quantize(const QuantizeRequest& request) {
  if (absl::Status status = Validate(request); !status.ok()) return status;
  if (request.squared_relu) {
    return absl::InvalidArgumentError("quantise: the CPU does not compute the squared ReLU of x");
  }
  const ConstMatrix& x = request.x;
  std::vector<CopyPlan> plans;
  for (const CopyRequest* copy : {&request.row, &request.column}) {
    if (copy->out != nullptr) plans.emplace_back(kernels_, request, *copy);
  }
  const Grid grid = CutIntoPatches(x, plans, pool_.threads());
  const int64_t tasks = x.cols == 0 ? 0 : grid.tasks();

  // Per thread: scratch memory and the results of each copy.
  struct PerThread {
    CopyScratch scratch;
    CopyTotals totals[2];
  };
  std::vector<PerThread> threads(pool_.threads());
  const auto merged = [&](size_t plan) {
    CopyTotals all;
    for (PerThread& thread : threads) {
      all.Merge(thread.totals[plan]);
      thread.totals[plan] = CopyTotals();
    }
    return all;
  };

  const auto find_amax = [&](int64_t task, int thread) {
    grid.ForPatches(task, false, [&](int64_t row, int64_t col, int64_t rows, int64_t cols) {
      // Column copies first: the row copy uses what they find out about the source.
      std::optional<uint32_t> plain;
      for (size_t i = plans.size(); i-- > 0;) {
        if (!plans[i].needs_amax_pass()) continue;
        plans[i].AmaxPatch(x, row, col, rows, cols, threads[thread].scratch,
                           threads[thread].totals[i], plain);
      }
    });
  };
  const auto set_amax = [&] {
    for (size_t i = 0; i < plans.size(); ++i) plans[i].SetAmax(merged(i));
  };
  // In reverse order: the source read last in the first pass may still be in the caches.
  const auto quantize = [&](int64_t task, int thread) {
    grid.ForPatches(task, true, [&](int64_t row, int64_t col, int64_t rows, int64_t cols) {
      for (size_t i = 0; i < plans.size(); ++i) {
        plans[i].QuantizePatch(x, row, col, rows, cols, threads[thread].scratch,
                               threads[thread].totals[i]);
      }
    });
  };
  const bool amax_pass = std::any_of(plans.begin(), plans.end(),
                                     [](const CopyPlan& plan) { return plan.needs_amax_pass(); });
  RunPasses(pool_, amax_pass ? tasks : 0, find_amax, set_amax, tasks, quantize);
  for (size_t i = 0; i < plans.size(); ++i) plans[i].Finish(merged(i));
  return absl::OkStatus();
}

}  // namespace nibble
