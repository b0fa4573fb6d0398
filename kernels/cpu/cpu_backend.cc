#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/copy_plan.h"

namespace nibble {

using cpu::CopyPlan;
using cpu::CopyScratch;
using cpu::CopyTotals;

absl::StatusOr<Buffer> HostMemory::Allocate(size_t bytes) {
  if (bytes == 0) return Buffer();
  void* data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no ", bytes, " bytes left in host memory"));
  }
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

void HostMemory::Free(void* data) { std::free(data); }

absl::StatusOr<std::unique_ptr<CpuBackend>> CpuBackend::Create(const Options& options) {
  if (options.threads < 0 || options.threads > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads: ", options.threads, " is not in 0 (every processor) to 1024"));
  }
  const absl::StatusOr<const cpu::LaneKernels*> kernels =
      cpu::KernelsFor(options.isa.value_or(cpu::SupportedIsas().back()));
  if (!kernels.ok()) return kernels.status();
  return std::unique_ptr<CpuBackend>(new CpuBackend(options.threads, **kernels));
}

std::string CpuBackend::Name() const {
  return absl::StrCat("cpu ", kernels_.name, ", ", pool_.threads(),
                      pool_.threads() == 1 ? " thread" : " threads");
}

namespace {

// How a request is cut. A task is a run of patches down the same columns, so that the lines of a
// transposed copy's scales are still in the cache when the next patch adds to them; a patch is
// small enough that the second copy finds the source in the cache.
struct Grid {
  int64_t rows, cols, task_rows, patch_rows, patch_cols, across;

  int64_t tasks() const { return (rows + task_rows - 1) / task_rows * across; }
  template <class Do>
  void ForPatches(int64_t task, Do&& run) const {
    const int64_t col = task % across * patch_cols;
    const int64_t first = task / across * task_rows;
    const int64_t end = std::min(rows, first + task_rows);
    for (int64_t row = first; row < end; row += patch_rows) {
      run(row, col, std::min(patch_rows, end - row), std::min(patch_cols, cols - col));
    }
  }
};

Grid CutIntoPatches(const ConstMatrix& x, const std::vector<CopyPlan>& plans, int threads) {
  int64_t row_unit = 1;
  int64_t col_unit = 16;
  bool columns = false;
  bool factors = false;
  for (const CopyPlan& plan : plans) {
    row_unit = std::max(row_unit, plan.row_unit());
    col_unit = std::max(col_unit, plan.col_unit());
    columns |= plan.columns();
    factors |= plan.uses_factors();
  }
  constexpr int64_t kTaskRows = 1024;
  // All are multiples of every unit. Row copies alone stream along whole rows; what keeps factors per
  // group takes few rows at a time, or they would crowd the source out of the cache.
  const int64_t patch_rows = !columns && factors ? std::max<int64_t>(row_unit, 16) : 128;
  const int64_t patch_cols = columns ? 512 : 8192 * 16 / std::max<int64_t>(row_unit, 16);
  Grid grid = {x.rows, x.cols, row_unit, 0, std::max(patch_cols, col_unit), 0};
  grid.across = (x.cols + grid.patch_cols - 1) / grid.patch_cols;
  // Rows per task: a whole number of patches once there are enough tasks for the threads.
  while (grid.task_rows < kTaskRows && grid.tasks() > 8 * threads) grid.task_rows *= 2;
  grid.patch_rows = std::min(grid.task_rows, patch_rows);
  return grid;
}

}  // namespace

absl::Status CpuBackend::Quantize(const QuantizeRequest& request) {
  if (absl::Status status = Validate(request); !status.ok()) return status;
  const ConstMatrix& x = request.x;
  std::vector<CopyPlan> plans;
  for (const CopyRequest* copy : {&request.row, &request.column}) {
    if (copy->out != nullptr) plans.emplace_back(kernels_, request, *copy);
  }
  const Grid grid = CutIntoPatches(x, plans, pool_.threads());
  const int64_t tasks = x.cols == 0 ? 0 : grid.tasks();

  // Per thread: scratch, and what each copy has learnt.
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

  const auto amax_patch = [&](int64_t index, int thread, bool serial) {
    grid.ForPatches(index, [&](int64_t row, int64_t col, int64_t rows, int64_t cols) {
      for (size_t i = 0; i < plans.size(); ++i) {
        if (!plans[i].needs_amax_pass() || plans[i].serial_amax_pass() != serial) continue;
        plans[i].AmaxPatch(x, row, col, rows, cols, threads[thread].scratch,
                           threads[thread].totals[i]);
      }
    });
  };
  bool parallel_pass = false;
  bool serial_pass = false;
  for (const CopyPlan& plan : plans) {
    if (plan.needs_amax_pass()) (plan.serial_amax_pass() ? serial_pass : parallel_pass) = true;
  }
  if (parallel_pass) {
    pool_.ParallelFor(tasks, [&](int64_t index, int thread) { amax_patch(index, thread, false); });
  }
  if (serial_pass) {
    for (int64_t index = 0; index < tasks; ++index) amax_patch(index, 0, true);
  }
  for (size_t i = 0; i < plans.size(); ++i) plans[i].SetAmax(merged(i));

  pool_.ParallelFor(tasks, [&](int64_t index, int thread) {
    grid.ForPatches(index, [&](int64_t row, int64_t col, int64_t rows, int64_t cols) {
      for (size_t i = 0; i < plans.size(); ++i) {
        plans[i].QuantizePatch(x, row, col, rows, cols, threads[thread].scratch,
                               threads[thread].totals[i]);
      }
    });
  });
  for (size_t i = 0; i < plans.size(); ++i) plans[i].Finish(merged(i));
  return absl::OkStatus();
}

}  // namespace nibble
