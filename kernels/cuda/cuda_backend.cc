#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/quantize_kernels.h"
#include "kernels/tensor/hadamard_signs.h"

namespace nibble {

using gpu::CodeType;
using gpu::CopyArgs;
using gpu::CopyFigures;
using gpu::DeviceHead;
using gpu::QuantizeArgs;
using gpu::ScaleType;

// Device code writes heads through a version of QuantHead of its own.
static_assert(sizeof(DeviceHead) == sizeof(QuantHead));
static_assert(offsetof(DeviceHead, amax) == offsetof(QuantHead, amax));
static_assert(offsetof(DeviceHead, reserved) == offsetof(QuantHead, reserved));
static_assert(offsetof(DeviceHead, non_finite) == offsetof(QuantHead, non_finite));
static_assert(offsetof(DeviceHead, stats) == offsetof(QuantHead, stats));
// Device code has its own names for elements and scales.
static_assert(static_cast<int>(CodeType::kE2M1) == static_cast<int>(Element::kE2M1));
static_assert(static_cast<int>(CodeType::kE4M3) == static_cast<int>(Element::kE4M3));
static_assert(static_cast<int>(CodeType::kE5M2) == static_cast<int>(Element::kE5M2));
static_assert(static_cast<int>(ScaleType::kE4M3) == static_cast<int>(ScaleKind::kE4M3));
static_assert(static_cast<int>(ScaleType::kE8M0) == static_cast<int>(ScaleKind::kE8M0));
static_assert(static_cast<int>(ScaleType::kF32) == static_cast<int>(ScaleKind::kF32));

namespace {

constexpr int kOldestMajor = 9;  // compute capability of Hopper

// A buffer of lines' amax starts with this many, and at least doubles.
constexpr int64_t kFewLines = 16384;

// Whether blocks are whole lines: each line's amax is found before it is quantised.
bool IsPerLine(const CopyRequest& copy) {
  return copy.out != nullptr && copy.out->spec().block == BlockShape{1, BlockShape::kWhole};
}

// Whether amax is needed before the quantising pass, and not known.
bool NeedsAmaxPass(const CopyRequest& copy) {
  const OperandSpec& spec = copy.out->spec();
  const bool per_tensor = spec.block.rows == BlockShape::kWhole;
  return IsPerLine(copy) || (copy.amax == nullptr &&
                             (copy.out->format().tensor_scale || per_tensor || copy.statistics));
}

CopyArgs ArgsOf(const QuantizeRequest& request, const CopyRequest& copy, CopyFigures* figures) {
  const QuantizedTensor& out = *copy.out;
  const OperandSpec& spec = out.spec();
  const Placement& place = request.placement;
  CopyArgs args = {};
  args.figures = figures;
  args.head = reinterpret_cast<DeviceHead*>(out.head());
  args.amax = copy.amax;
  args.statistics_amax = copy.statistics_amax;
  if (out.packed()) {
    args.codes = out.codes();
    args.code_stride = out.code_row_bytes();
    args.scales = static_cast<uint8_t*>(out.scales());
    args.scale_stride = out.scale_cols();
  }
  args.column = out.is_column();
  if (out.emulated_layout() != EmulatedLayout::kNone) {
    args.emulated = out.emulated();
    args.emulated_transposed = args.column && out.emulated_layout() == EmulatedLayout::kCopy;
    args.emulated_stride = args.emulated_transposed ? out.copy_cols() : out.cols();
  }
  args.stochastic = spec.rounding == Rounding::kStochastic;
  args.general =
      spec.format != Format::kNvfp4 || (spec.hadamard.size != 0 && spec.hadamard.size != 16);
  args.square = spec.block.rows == 16;
  args.hadamard = spec.hadamard.size == 16;
  args.divide_first = spec.formula == FormulaVersion::kTePre2_14;
  args.amax_pass = NeedsAmaxPass(copy);
  args.find_amax = !args.amax_pass && copy.amax == nullptr;
  args.code_type = static_cast<CodeType>(out.format().element);
  args.scale_type = static_cast<ScaleType>(out.format().scale);
  args.block_lines = spec.block.rows;
  args.block_length = spec.block.cols;
  args.hadamard_size = spec.hadamard.size;
  args.signs = Signs(spec.hadamard);
  for (int i = 0; i < 32; ++i) args.sign_bits[i] = args.signs.Bit(i) << 31;
  args.random = copy.random;
  args.step = copy.step;
  args.keys = gpu::RoundKeysOf(copy.random.seed);
  const int64_t global_along = args.column ? place.global_rows : place.global_cols;
  args.row_blocks = static_cast<uint64_t>(global_along != 0 ? global_along : out.copy_cols()) / 16;
  const int64_t first_line = args.column ? place.first_col : place.first_row;
  const int64_t first_along = args.column ? place.first_row : place.first_col;
  args.first_block =
      static_cast<uint64_t>(first_line) * args.row_blocks + static_cast<uint64_t>(first_along / 16);
  const uint64_t last_block = args.first_block +
                              static_cast<uint64_t>(out.copy_rows()) * args.row_blocks +
                              static_cast<uint64_t>(out.copy_cols() / 16);
  args.one_start = args.first_block >> 32 == last_block >> 32;
  return args;
}

const char* NameOf(const CopyArgs& copy) { return copy.column ? "column" : "row"; }

std::string NamesOf(const QuantizeArgs& args) {
  return args.copies == 2 ? "row+column" : NameOf(args.copy[0]);
}

// The same request with only one of its copies.
QuantizeArgs OnlyCopy(const QuantizeArgs& args, int copy) {
  QuantizeArgs one = args;
  one.copies = 1;
  one.copy[0] = args.copy[copy];
  return one;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaBackend>> CudaBackend::Create(int device, size_t memory_bytes) {
  absl::Status status = StatusOf(cudaSetDevice(device), absl::StrCat("cudaSetDevice ", device));
  if (!status.ok()) return status;
  cudaDeviceProp properties;
  status = StatusOf(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  if (!status.ok()) return status;
  if (properties.major < kOldestMajor) {
    return absl::FailedPreconditionError(absl::StrCat(
        "CUDA device ", device, ", ", properties.name, ", has compute capability ",
        properties.major, ".", properties.minor, "; the kernels need ", kOldestMajor, ".0"));
  }
  cudaStream_t streams[2];
  for (cudaStream_t& stream : streams) {
    NIBBLE_RETURN_IF_ERROR(StatusOf(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                                    "cudaStreamCreateWithFlags"));
  }
  std::unique_ptr<CudaBackend> backend(
      new CudaBackend(device, streams[0], streams[1], memory_bytes, properties));
  constexpr size_t kBytes = 2 * sizeof(CopyFigures);
  NIBBLE_ASSIGN_OR_RETURN(backend->figures_, backend->memory_.Allocate(kBytes));
  status = backend->memory_.Fill(backend->figures_.data(), 0, kBytes);
  if (!status.ok()) return status;
  NIBBLE_ASSIGN_OR_RETURN(backend->fault_, backend->pinned_.Allocate(sizeof(gpu::DeviceFault)));
  *backend->fault() = {};
  return backend;
}

CudaBackend::~CudaBackend() {
  cudaSetDevice(device_);
  for (CudaQueue* queue : {&compute_, &transfers_}) {
    cudaStreamSynchronize(queue->stream());
    cudaStreamDestroy(queue->stream());
  }
}

QuantizeArgs CudaBackend::ArgsFor(const QuantizeRequest& request) const {
  QuantizeArgs args = {};
  args.x = {request.x.data,
            request.x.rows,
            request.x.cols,
            request.x.stride,
            request.x.dtype == DType::kF32,
            request.squared_relu};
  for (const CopyRequest* copy : {&request.row, &request.column}) {
    if (copy->out == nullptr) continue;
    CopyArgs& of = args.copy[args.copies];
    of = ArgsOf(request, *copy, figures_.data<CopyFigures>() + args.copies);
    if (IsPerLine(*copy) && !line_amax_.empty()) {
      of.line_amax = line_amax_.back().data<uint32_t>() + (of.column ? request.x.rows : 0);
    }
    ++args.copies;
  }
  return args;
}

absl::Status CudaBackend::Quantize(const QuantizeRequest& request) {
  if (absl::Status status = Validate(request); !status.ok()) return status;
  NIBBLE_RETURN_IF_ERROR(ReserveLines(request));
  const QuantizeArgs args = ArgsFor(request);
  last_path_.clear();
  absl::Status status = StatusOf(cudaSetDevice(device_), "cudaSetDevice");
  if (status.ok()) status = EnqueueAmax(args);
  // An empty matrix has only heads.
  if (status.ok() && request.x.rows * request.x.cols != 0) {
    status = EnqueueQuantize(args, request);
  }
  return status;
}

absl::Status CudaBackend::ReserveLines(const QuantizeRequest& request) {
  if (!IsPerLine(request.row) && !IsPerLine(request.column)) return absl::OkStatus();
  const size_t bytes = (request.x.rows + request.x.cols) * sizeof(uint32_t);
  const size_t has = line_amax_.empty() ? 0 : line_amax_.back().bytes();
  if (bytes <= has) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(
      Buffer grown,
      memory_.Allocate(std::max({bytes, 2 * has, size_t{kFewLines} * sizeof(uint32_t)})));
  line_amax_.push_back(std::move(grown));
  return absl::OkStatus();
}

absl::Status CudaBackend::EnqueueAmax(const QuantizeArgs& args) {
  const bool empty = args.x.rows * args.x.cols == 0;
  if (!empty && !naive_only_ && gpu::TileAmaxTakes(args)) {
    Ran("tile amax");
    return StatusOf(gpu::LaunchTileAmax(args, processors_, stream()), "launch of the amax kernel");
  }
  for (int i = 0; i < args.copies && !empty; ++i) {
    const CopyArgs& copy = args.copy[i];
    if (!copy.amax_pass) continue;
    if (copy.general) {
      if (copy.line_amax != nullptr) {
        const int64_t lines = copy.column ? args.x.cols : args.x.rows;
        NIBBLE_RETURN_IF_ERROR(
            StatusOf(cudaMemsetAsync(copy.line_amax, 0, lines * sizeof(uint32_t), stream()),
                     "cudaMemsetAsync"));
      }
      Ran(absl::StrCat("general amax ", NameOf(copy)));
      NIBBLE_RETURN_IF_ERROR(
          StatusOf(gpu::LaunchGeneralAmax(args, i, stream()), "launch of the general amax kernel"));
      continue;
    }
    Ran(absl::StrCat("naive amax ", NameOf(copy)));
    NIBBLE_RETURN_IF_ERROR(
        StatusOf(gpu::LaunchNaiveAmax(args, i, stream()), "launch of the naive amax kernel"));
  }
  return StatusOf(gpu::LaunchPrepare(args, stream()), "launch of the scale kernel");
}

absl::Status CudaBackend::EnqueueQuantize(const QuantizeArgs& args,
                                          const QuantizeRequest& request) {
  bool statistics[2] = {};
  for (int i = 0; i < args.copies; ++i) {
    statistics[i] = (args.copy[i].column ? request.column : request.row).statistics;
  }
  // One fast kernel for both copies, or else one for each that has any.
  bool tiled[2] = {};
  const auto run_fast = [&](const QuantizeArgs& of, bool with_statistics) -> absl::StatusOr<bool> {
    if (naive_only_) return false;
    if (gpu::TileTakes(of)) {
      Ran(absl::StrCat("tile ", NamesOf(of)));
      NIBBLE_RETURN_IF_ERROR(StatusOf(gpu::LaunchTile(of, stream()), "launch of the tile kernel"));
      return true;
    }
    // Statistics of the other formats come from the general kernels, which write everything.
    if (with_statistics) return false;
    if (gpu::MxTakes(of)) {
      Ran(absl::StrCat("mxfp4 ", NamesOf(of)));
      NIBBLE_RETURN_IF_ERROR(StatusOf(gpu::LaunchMx(of, stream()), "launch of the MXFP4 kernel"));
      return true;
    }
    if (!gpu::ByteTakes(of)) return false;
    Ran(absl::StrCat("byte ", NamesOf(of)));
    NIBBLE_RETURN_IF_ERROR(StatusOf(gpu::LaunchByte(of, stream()), "launch of the byte kernel"));
    return true;
  };
  NIBBLE_ASSIGN_OR_RETURN(const bool together, run_fast(args, statistics[0] || statistics[1]));
  for (int i = 0; i < args.copies; ++i) {
    tiled[i] = together;
    if (together || args.copies == 1) continue;
    NIBBLE_ASSIGN_OR_RETURN(tiled[i], run_fast(OnlyCopy(args, i), statistics[i]));
  }
  for (int i = 0; i < args.copies; ++i) {
    if (tiled[i] && !statistics[i]) continue;
    if (args.copy[i].general) {
      Ran(absl::StrCat("general ", NameOf(args.copy[i])));
      NIBBLE_RETURN_IF_ERROR(StatusOf(gpu::LaunchGeneral(args, i, statistics[i], stream()),
                                      "launch of the general kernel"));
      continue;
    }
    QuantizeArgs run = args;
    if (tiled[i]) {
      run.copy[i].codes = nullptr;
      run.copy[i].emulated = nullptr;
      run.copy[i].amax_pass = true;  // NaN and infinities are counted already
    }
    Ran(absl::StrCat(tiled[i] ? "statistics " : "naive ", NameOf(args.copy[i])));
    NIBBLE_RETURN_IF_ERROR(
        StatusOf(gpu::LaunchNaive(run, i, statistics[i], stream()), "launch of the naive kernel"));
  }
  return absl::OkStatus();
}

void CudaBackend::Ran(const std::string& kernel) {
  absl::StrAppend(&last_path_, last_path_.empty() ? "" : "; ", kernel);
}

absl::Status CudaBackend::Pin(void* host, size_t bytes) {
  return StatusOf(cudaHostRegister(host, bytes, cudaHostRegisterDefault),
                  absl::StrCat("cudaHostRegister of ", bytes, " bytes"));
}

absl::Status CudaBackend::Unpin(void* host) {
  return StatusOf(cudaHostUnregister(host), "cudaHostUnregister");
}

absl::StatusOr<std::unique_ptr<Event>> CudaBackend::NewEvent() {
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaSetDevice(device_), "cudaSetDevice"));
  return CudaEvent::Create();
}

absl::Status CudaBackend::QueuesStatus() const {
  NIBBLE_RETURN_IF_ERROR(error_.Get());
  // The caller has waited for the kernels.
  const gpu::DeviceFault found = *fault();
  switch (found.kind) {
    case gpu::FaultKind::kNone:
      return absl::OkStatus();
    case gpu::FaultKind::kEmbeddingKey:
      return absl::InvalidArgumentError(absl::StrCat("embedding: row ", found.row,
                                                     " has token or position ", found.value,
                                                     ", not in [0, ", found.bound, ")"));
    case gpu::FaultKind::kTarget:
      return absl::InvalidArgumentError(absl::StrCat("cross entropy: row ", found.row,
                                                     " has target ", found.value, ", not in [-1, ",
                                                     found.bound, ")"));
  }
  return absl::InternalError("a kernel reported an unknown fault");
}

absl::Status CudaBackend::Wait(const Event& event) {
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaEventSynchronize(static_cast<const CudaEvent&>(event).get()),
                                  "cudaEventSynchronize"));
  return QueuesStatus();
}

absl::StatusOr<bool> CudaBackend::HasPassed(const Event& event) {
  const cudaError_t reached = cudaEventQuery(static_cast<const CudaEvent&>(event).get());
  if (reached == cudaErrorNotReady) return false;
  NIBBLE_RETURN_IF_ERROR(StatusOf(reached, "cudaEventQuery"));
  NIBBLE_RETURN_IF_ERROR(QueuesStatus());
  return true;
}

absl::StatusOr<double> CudaBackend::SecondsBetween(const Event& begin, const Event& end) {
  NIBBLE_RETURN_IF_ERROR(Wait(end));
  float milliseconds = 0;
  NIBBLE_RETURN_IF_ERROR(
      StatusOf(cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(begin).get(),
                                    static_cast<const CudaEvent&>(end).get()),
               "cudaEventElapsedTime"));
  return static_cast<double>(milliseconds) / 1e3;
}

absl::Status CudaBackend::Synchronize() {
  NIBBLE_RETURN_IF_ERROR(compute_.Synchronize());
  NIBBLE_RETURN_IF_ERROR(transfers_.Synchronize());
  return QueuesStatus();
}

}  // namespace nibble
