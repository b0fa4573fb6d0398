#include "kernels/cuda/gemm/cuda_gemm.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/gemm/gemm_kernels.h"
#include "kernels/cuda/gemm/sliced_kernels.h"
#include "kernels/gemm/gemm_scales.h"

namespace nibble {
namespace {

constexpr int64_t kAlphas = 1024;
// Bands of rows are multiples of this.
constexpr int64_t kBandRows = 256;

int64_t StrideBytes(const MutableMatrix& c) { return c.stride * DTypeBytes(c.dtype); }

LtType TypeOfResult(DType dtype) { return dtype == DType::kF32 ? LtType::kF32 : LtType::kBf16; }

// The problem, without deciding where alpha is stored.
LtProblem ProblemOf(const GemmRequest& request, const PreparedOperand& a,
                    const PreparedOperand& b) {
  LtProblem problem;
  problem.m = request.c.rows;
  problem.n = request.c.cols;
  problem.k = request.a.depth();
  problem.a = a.form;
  problem.b = b.form;
  problem.c = TypeOfResult(request.c.dtype);
  problem.c_stride = request.c.stride;
  problem.accumulate = request.accumulate;
  problem.alignment =
      std::min({AlignmentOf(a.data, RowBytes(a.form)), AlignmentOf(b.data, RowBytes(b.form)),
                AlignmentOf(request.c.data, StrideBytes(request.c))});
  return problem;
}

bool HasTensorScale(const GemmRequest& request) {
  return AlphaPartOf(request.a).kind != AlphaPart::Kind::kNone ||
         AlphaPartOf(request.b).kind != AlphaPart::Kind::kNone;
}

// cuBLASLt has no FP32 matmul with a BF16 result, and some of its algorithms round twice where a
// BF16 result is added to C.
bool NeedsFinish(const GemmRequest& request, GemmPath path) {
  return request.c.dtype == DType::kBf16 && (request.accumulate || path == GemmPath::kFp32);
}

// Alpha, with the tensors' scales unless the library applies them.
gpu::FinishArgs FinishWithAlpha(const GemmRequest& request, bool tensor_scales) {
  gpu::FinishArgs finish;
  finish.alpha = request.alpha;
  if (tensor_scales) {
    finish.alpha_a = AlphaPartOf(request.a);
    finish.alpha_b = AlphaPartOf(request.b);
  }
  return finish;
}

// Whether rows of codes and of C can be multiples of 16 bytes: buffers of tensors are aligned.
bool IsAligned(const GemmRequest& request) {
  const auto fits = [](const GemmOperand& operand) {
    return !operand.is_quantized() || AlignmentOf(operand.quantized().codes(), 16) == 16;
  };
  return fits(request.a) && fits(request.b) &&
         AlignmentOf(request.c.data, StrideBytes(request.c)) == 16;
}

gpu::SlicedOperand SlicedOperandOf(const GemmOperand& operand, const PreparedOperand& prepared) {
  gpu::SlicedOperand out;
  out.data = prepared.data;
  out.f32 = prepared.form.type == LtType::kF32;
  out.k_major = prepared.form.k_major;
  out.stride = prepared.form.stride;
  const LineScales scales = LineScalesOf(operand);
  (scales.per_slice ? out.slices : out.lines) = ViewOf(scales);
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaGemm>> CudaGemm::Create(CudaBackend& backend,
                                                           const Options& options) {
  const CublasLt* library = options.library;
  if (library == nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(library, LoadCublasLt());
  }
  int device = 0;
  NIBBLE_RETURN_IF_ERROR(
      StatusOf(cudaStreamGetDevice(backend.stream(), &device), "cudaStreamGetDevice"));
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaSetDevice(device), "cudaSetDevice"));
  int capability = options.capability;
  if (capability == 0) {
    int major = 0, minor = 0;
    NIBBLE_RETURN_IF_ERROR(
        StatusOf(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                 "cudaDeviceGetAttribute"));
    NIBBLE_RETURN_IF_ERROR(
        StatusOf(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
                 "cudaDeviceGetAttribute"));
    capability = 10 * major + minor;
  }
  std::unique_ptr<CudaGemm> gemm(new CudaGemm(backend, device,
                                              {capability, options.native, options.fp4_in_fp8},
                                              std::max<int64_t>(1, options.sum_bytes)));
  NIBBLE_ASSIGN_OR_RETURN(
      gemm->lt_,
      LtEngine::Create(
          backend.memory(), backend.stream(), *library,
          {absl::StrCat(backend.Name(), ", ", backend.processors(), " multiprocessors"),
           std::max(1, options.candidates), options.least_measured, options.copy_bytes}));
  NIBBLE_ASSIGN_OR_RETURN(gemm->alphas_, backend.memory().Allocate(kAlphas * sizeof(float)));
  return gemm;
}

std::string CudaGemm::Name() const {
  return absl::StrCat("cublasLt ", lt_->version(), " on compute capability ",
                      hardware_.capability / 10, ".", hardware_.capability % 10,
                      hardware_.native ? "" : ", every format emulated");
}

PathChoice CudaGemm::PathOf(const GemmRequest& request) const {
  const PathShape shape = {request.c.rows, request.c.cols, request.a.depth(), IsAligned(request)};
  return ChoosePath(PathOperandOf(request.a), PathOperandOf(request.b), &shape, hardware_);
}

std::string CudaGemm::PathName(const GemmRequest& request) const {
  const PathChoice choice = PathOf(request);
  return absl::StrCat(
      nibble::PathName(choice.path, PathOperandOf(request.a), PathOperandOf(request.b)), ": ",
      choice.reason);
}

GemmPlan CudaGemm::Wants(const GemmUse& use) const {
  const PathOperand a = PathOperandOf(use.a), b = PathOperandOf(use.b);
  const PathChoice choice = ChoosePath(a, b, nullptr, hardware_);
  return {PlanOf(choice.path, a), PlanOf(choice.path, b), nibble::PathName(choice.path, a, b),
          choice.reason};
}

absl::Status CudaGemm::Gemm(const GemmRequest& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  const MutableMatrix& c = request.c;
  if (c.rows == 0 || c.cols == 0) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaSetDevice(device_), "cudaSetDevice"));
  NIBBLE_RETURN_IF_ERROR(stream_.Begin());
  if (request.a.depth() == 0) {
    if (request.accumulate) return absl::OkStatus();
    const auto pitch = static_cast<size_t>(StrideBytes(c));
    const auto width = static_cast<size_t>(c.cols * DTypeBytes(c.dtype));
    return StatusOf(
        cudaMemset2DAsync(c.data, pitch, 0, width, static_cast<size_t>(c.rows), backend_.stream()),
        "cudaMemset2DAsync");
  }
  const PathChoice choice = PathOf(request);
  if (IsNative(choice.path)) return RunNative(request, choice.path);
  if (choice.path == GemmPath::kSliced) return RunSliced(request);
  return RunPlain(request, choice.path);
}

absl::Status CudaGemm::Prepare(const GemmRequest& request) {
  NIBBLE_RETURN_IF_ERROR(stream_.Begin());
  if (stream_.is_captured()) {
    return absl::FailedPreconditionError("a GEMM cannot be prepared while a graph is captured");
  }
  NIBBLE_RETURN_IF_ERROR(Gemm(request));
  return backend_.Synchronize();
}

absl::StatusOr<const float*> CudaGemm::DeviceAlpha(const GemmRequest& request) {
  float* const alpha = alphas_.data<float>() + next_alpha_;
  next_alpha_ = (next_alpha_ + 1) % kAlphas;
  NIBBLE_RETURN_IF_ERROR(
      StatusOf(gpu::LaunchAlpha(request.alpha, AlphaPartOf(request.a), AlphaPartOf(request.b),
                                alpha, backend_.stream()),
               "launch of the alpha kernel"));
  return alpha;
}

absl::Status CudaGemm::RunPlain(const GemmRequest& request, GemmPath path) {
  const DType dtype = path == GemmPath::kFp32 ? DType::kF32 : DType::kBf16;
  NIBBLE_ASSIGN_OR_RETURN(const PreparedOperand a,
                          operands_.Plain(request.a, dtype, GemmOperands::Side::kA));
  NIBBLE_ASSIGN_OR_RETURN(const PreparedOperand b,
                          operands_.Plain(request.b, dtype, GemmOperands::Side::kB));
  LtProblem problem = ProblemOf(request, a, b);
  LtPointers pointers = {.a = a.data, .b = b.data, .c = request.c.data, .alpha = request.alpha};
  const LineScales lines_a = LineScalesOf(request.a), lines_b = LineScalesOf(request.b);
  if (lines_a.data != nullptr || lines_b.data != nullptr || NeedsFinish(request, path)) {
    gpu::FinishArgs finish = FinishWithAlpha(request, true);
    finish.a = ViewOf(lines_a);
    finish.b = ViewOf(lines_b);
    return RunWithFinish(request, problem, pointers, finish);
  }
  if (HasTensorScale(request)) {
    problem.device_alpha = true;
    NIBBLE_ASSIGN_OR_RETURN(pointers.device_alpha, DeviceAlpha(request));
  }
  return lt_->Run(problem, pointers);
}

absl::Status CudaGemm::RunWithFinish(const GemmRequest& request, const LtProblem& problem,
                                     const LtPointers& pointers, gpu::FinishArgs finish) {
  const MutableMatrix& c = request.c;
  finish.cols = c.cols;
  finish.c_stride = c.stride;
  finish.c_bf16 = c.dtype == DType::kBf16;
  finish.accumulate = request.accumulate;

  LtProblem sums = problem;
  LtPointers band = pointers;
  sums.c = LtType::kF32;
  sums.accumulate = false;
  band.alpha = 1.0f;
  // FP32 results that are not added to take the sums first.
  const bool in_place = c.dtype == DType::kF32 && !request.accumulate;
  int64_t band_rows = c.rows;
  if (!in_place) {
    const int64_t row_bytes = c.cols * static_cast<int64_t>(sizeof(float));
    // An operand with scales of the library's layouts is not cut.
    const bool whole = problem.a.scale != LtScale::kNone;
    const int64_t bands = whole ? 1 : (c.rows * row_bytes + sum_bytes_ - 1) / sum_bytes_;
    // Equal bands, so that most have the same algorithm.
    const int64_t rows = (c.rows + bands - 1) / bands;
    band_rows = std::min(c.rows, (rows + kBandRows - 1) / kBandRows * kBandRows);
    NIBBLE_ASSIGN_OR_RETURN(band.c,
                            sums_.Reserve(backend_.memory(), stream_, band_rows * row_bytes));
    sums.c_stride = c.cols;
    sums.alignment = std::min(sums.alignment, AlignmentOf(band.c, row_bytes));
  }
  finish.sums = static_cast<const float*>(band.c);
  finish.sums_stride = sums.c_stride;
  const int64_t a_row_bytes =
      problem.a.k_major ? RowBytes(problem.a) : LtTypeBits(problem.a.type) / 8;
  for (int64_t row = 0; row < c.rows; row += band_rows) {
    sums.m = finish.rows = std::min(band_rows, c.rows - row);
    band.a = static_cast<const char*>(pointers.a) + row * a_row_bytes;
    NIBBLE_RETURN_IF_ERROR(lt_->Run(sums, band));
    finish.first_row = row;
    finish.c = static_cast<char*>(c.data) + row * StrideBytes(c);
    NIBBLE_RETURN_IF_ERROR(StatusOf(gpu::LaunchFinish(finish, backend_.stream()),
                                    "launch of the kernel that applies line scales"));
  }
  return absl::OkStatus();
}

absl::Status CudaGemm::RunSliced(const GemmRequest& request) {
  const auto is_fp32 = [](const GemmOperand& operand) {
    return !operand.is_quantized() && operand.matrix().dtype == DType::kF32;
  };
  const bool fp32 = is_fp32(request.a) || is_fp32(request.b);
  const DType dtype = fp32 ? DType::kF32 : DType::kBf16;
  NIBBLE_ASSIGN_OR_RETURN(const PreparedOperand a,
                          operands_.Plain(request.a, dtype, GemmOperands::Side::kA));
  NIBBLE_ASSIGN_OR_RETURN(const PreparedOperand b,
                          operands_.Plain(request.b, dtype, GemmOperands::Side::kB));
  gpu::SlicedArgs args;
  args.m = request.c.rows;
  args.n = request.c.cols;
  args.k = request.a.depth();
  args.a = SlicedOperandOf(request.a, a);
  args.b = SlicedOperandOf(request.b, b);
  args.c = request.c.data;
  args.c_stride = request.c.stride;
  args.c_bf16 = request.c.dtype == DType::kBf16;
  args.accumulate = request.accumulate;
  args.alpha = request.alpha;
  args.alpha_a = AlphaPartOf(request.a);
  args.alpha_b = AlphaPartOf(request.b);
  return gpu::SlicedTileTakes(args) ? StatusOf(gpu::LaunchSlicedTile(args, backend_.stream()),
                                               "launch of the sliced matmul")
                                    : StatusOf(gpu::LaunchSlicedNaive(args, backend_.stream()),
                                               "launch of the naive sliced matmul");
}

absl::Status CudaGemm::RunNative(const GemmRequest& request, GemmPath path) {
  PreparedOperand a, b;
  NIBBLE_RETURN_IF_ERROR(operands_.Native(path, request.a, request.b, a, b));
  LtProblem problem = ProblemOf(request, a, b);
  LtPointers pointers = {.a = a.data,
                         .b = b.data,
                         .c = request.c.data,
                         .a_scales = a.scales,
                         .b_scales = b.scales,
                         .alpha = request.alpha};
  // The library applies the scales of FP8 tensors itself.
  if (NeedsFinish(request, path)) {
    return RunWithFinish(request, problem, pointers,
                         FinishWithAlpha(request, path == GemmPath::kNvfp4));
  }
  if (path == GemmPath::kNvfp4) {
    problem.device_alpha = true;
    NIBBLE_ASSIGN_OR_RETURN(pointers.device_alpha, DeviceAlpha(request));
  }
  return lt_->Run(problem, pointers);
}

}  // namespace nibble
