#include "kernels/gemm/tile_gemm.h"

#include <dnnl_debug.h>
#include <omp.h>

#include <dnnl.hpp>
#include <exception>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace nibble::cpu {
namespace {

// oneDNN asks OpenMP how many threads the calling thread may start; the answer one means none.
class OneOpenMpThread {
 public:
  OneOpenMpThread() : saved_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneOpenMpThread() { omp_set_num_threads(saved_); }
  OneOpenMpThread(const OneOpenMpThread&) = delete;
  OneOpenMpThread& operator=(const OneOpenMpThread&) = delete;

 private:
  const int saved_;
};

class Fp32TileGemm : public TileGemm {
 public:
  bool Supports(DType c_dtype, bool) const override { return c_dtype == DType::kF32; }

  absl::Status Run(const TileTask& task, int) override {
    const OneOpenMpThread one;
    const dnnl_status_t status =
        dnnl_sgemm(task.a.lines_first ? 'N' : 'T', task.b.lines_first ? 'T' : 'N', task.m, task.n,
                   task.k, 1.0f, static_cast<const float*>(task.a.data), task.a.stride,
                   static_cast<const float*>(task.b.data), task.b.stride,
                   task.accumulate ? 1.0f : 0.0f, static_cast<float*>(task.c), task.c_stride);
    if (status == dnnl_success) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("oneDNN sgemm of a ", task.m, "x", task.n, "x", task.k,
                                            " tile: ", dnnl_status2str(status)));
  }
};

using dnnl::matmul;
using dnnl::memory;

class Bf16TileGemm : public TileGemm {
 public:
  explicit Bf16TileGemm(int threads) : engine_(dnnl::engine::kind::cpu, 0) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back(engine_);
  }

  bool Supports(DType c_dtype, bool accumulate) const override {
    // oneDNN's sum into BF16 may round twice.
    return c_dtype == DType::kF32 || !accumulate;
  }

  absl::Status Run(const TileTask& task, int thread) override {
    const OneOpenMpThread one;
    try {
      const Compiled compiled = Get(task);
      PerThread& own = threads_[thread];
      void* scratchpad = own.Scratchpad(compiled.scratchpad.get_size());
      compiled.gemm.execute(own.stream,
                            {{DNNL_ARG_SRC, Memory(compiled.a, task.a.data)},
                             {DNNL_ARG_WEIGHTS, Memory(compiled.b, task.b.data)},
                             {DNNL_ARG_DST, Memory(compiled.c, task.c)},
                             {DNNL_ARG_SCRATCHPAD, Memory(compiled.scratchpad, scratchpad)}});
      own.stream.wait();
    } catch (const std::exception& error) {
      return absl::InternalError(absl::StrCat("oneDNN bf16 GEMM of a ", task.m, "x", task.n, "x",
                                              task.k, " tile: ", error.what()));
    }
    return absl::OkStatus();
  }

  // Throws dnnl::error if there is no such GEMM.
  void Probe() {
    TileTask task = {};
    task.a = task.b = {nullptr, DType::kBf16, true, 16};
    task.m = task.n = task.k = task.c_stride = 16;
    Get(task);
  }

 private:
  struct Compiled {
    memory::desc a, b, c, scratchpad;
    matmul gemm;
  };
  struct PerThread {
    explicit PerThread(const dnnl::engine& engine) : stream(engine) {}
    void* Scratchpad(size_t bytes) {
      constexpr size_t kAlignment = 64;
      size_t space = bytes + kAlignment;
      if (scratch.size() < space) scratch.resize(space);
      void* aligned = scratch.data();
      return std::align(kAlignment, bytes, aligned, space);
    }
    dnnl::stream stream;
    std::vector<char> scratch;
  };
  // Shape and layout; the pointers follow at execution.
  using Key =
      std::tuple<int64_t, int64_t, int64_t, bool, int64_t, bool, int64_t, bool, bool, int64_t>;
  static constexpr size_t kMostCompiled = 512;

  memory Memory(const memory::desc& desc, const void* data) const {
    return memory(desc, engine_, const_cast<void*>(data));
  }

  Compiled Get(const TileTask& task) {
    const bool bf16_c = task.c_dtype == DType::kBf16;
    const Key key = {task.m,          task.n,
                     task.k,          task.a.lines_first,
                     task.a.stride,   task.b.lines_first,
                     task.b.stride,   bf16_c,
                     task.accumulate, task.c_stride};
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = compiled_.find(key);
    if (found != compiled_.end()) return found->second;
    Compiled made = Compile(task, bf16_c);
    // A cap for the cache, since ragged batches produce any number of shapes.
    if (compiled_.size() >= kMostCompiled) compiled_.clear();
    compiled_.emplace(key, made);
    return made;
  }

  Compiled Compile(const TileTask& task, bool bf16_c) const {
    using Dims = memory::dims;
    constexpr auto kBf16 = memory::data_type::bf16;
    const Dims strides_a = task.a.lines_first ? Dims{task.a.stride, 1} : Dims{1, task.a.stride};
    const Dims strides_b = task.b.lines_first ? Dims{1, task.b.stride} : Dims{task.b.stride, 1};
    Compiled made;
    made.a = memory::desc({task.m, task.k}, kBf16, strides_a);
    made.b = memory::desc({task.k, task.n}, kBf16, strides_b);
    made.c = memory::desc({task.m, task.n}, bf16_c ? kBf16 : memory::data_type::f32,
                          Dims{task.c_stride, 1});
    dnnl::primitive_attr attributes;
    // The library's own scratchpads belong to the thread that created the primitive.
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (task.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const matmul::primitive_desc description(matmul::desc(made.a, made.b, made.c), attributes,
                                             engine_);
    made.scratchpad = description.scratchpad_desc();
    made.gemm = matmul(description);
    return made;
  }

  const dnnl::engine engine_;
  std::vector<PerThread> threads_;
  // Not Abseil's: ThreadSanitizer cannot instrument its build, and worker threads take this mutex.
  std::mutex mutex_;
  std::map<Key, Compiled> compiled_;  // guarded by mutex_
};

}  // namespace

std::unique_ptr<TileGemm> MakeFp32TileGemm() { return std::make_unique<Fp32TileGemm>(); }

absl::StatusOr<std::unique_ptr<TileGemm>> MakeBf16TileGemm(int threads) {
  try {
    const OneOpenMpThread one;
    auto gemm = std::make_unique<Bf16TileGemm>(threads);
    gemm->Probe();
    return gemm;
  } catch (const dnnl::error& error) {
    return absl::FailedPreconditionError(
        absl::StrCat("oneDNN has no bf16 GEMM for this processor: ", error.what()));
  }
}

bool HasBf16Instructions() {
  // Instruction sets are bit masks; their numbers have no order (AVX2 with VNNI is the largest).
  constexpr auto kBf16 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kBf16) == kBf16;
}

}  // namespace nibble::cpu
