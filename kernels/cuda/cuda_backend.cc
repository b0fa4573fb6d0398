#include "kernels/cuda/cuda_backend.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/quantize_kernels.h"
#include "kernels/tensor/hadamard_signs.h"

namespace nibble {

using gpu::CopyArgs;
using gpu::CopyFigures;
using gpu::DeviceHead;
using gpu::QuantizeArgs;

// Device code writes heads through its own version of QuantHead.
static_assert(sizeof(DeviceHead) == sizeof(QuantHead));
static_assert(offsetof(DeviceHead, amax) == offsetof(QuantHead, amax));
static_assert(offsetof(DeviceHead, reserved) == offsetof(QuantHead, reserved));
static_assert(offsetof(DeviceHead, non_finite) == offsetof(QuantHead, non_finite));
static_assert(offsetof(DeviceHead, stats) == offsetof(QuantHead, stats));

namespace {

constexpr int kOldestMajor = 9;  // compute capability of Hopper

absl::Status CheckSupported(const QuantizedTensor& out) {
  const OperandSpec& spec = out.spec();
  if (spec.format != Format::kNvfp4) {
    return absl::UnimplementedError(absl::StrCat("format ", std::string(out.format().name),
                                                 " has no CUDA kernel yet; it runs on the cpu "
                                                 "backend"));
  }
  if (spec.hadamard.size != 0 && spec.hadamard.size != 16) {
    return absl::UnimplementedError(absl::StrCat("Hadamard size ", spec.hadamard.size,
                                                 " has no CUDA kernel yet, 16 has; it runs on the "
                                                 "cpu backend"));
  }
  return absl::OkStatus();
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
  args.square = spec.block.rows == 16;
  args.stochastic = spec.rounding == Rounding::kStochastic;
  args.hadamard = spec.hadamard.size == 16;
  args.divide_first = spec.formula == FormulaVersion::kTePre2_14;
  args.count_non_finite = copy.amax != nullptr;
  const SignMask signs = Signs(spec.hadamard);
  for (int i = 0; i < 16; ++i) args.sign_bits[i] = signs.Bit(i) << 31;
  args.random = copy.random;
  args.keys = gpu::RoundKeysOf(copy.random.seed);
  const int64_t global_along = args.column ? place.global_rows : place.global_cols;
  args.row_blocks = static_cast<uint64_t>(global_along != 0 ? global_along : out.copy_cols()) / 16;
  const int64_t first_line = args.column ? place.first_col : place.first_row;
  const int64_t first_along = args.column ? place.first_row : place.first_col;
  args.first_block =
      static_cast<uint64_t>(first_line) * args.row_blocks + static_cast<uint64_t>(first_along / 16);
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

absl::StatusOr<std::unique_ptr<CudaBackend>> CudaBackend::Create(int device) {
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
  std::unique_ptr<CudaBackend> backend(new CudaBackend(
      device, streams[0], streams[1], properties.name, properties.multiProcessorCount));
  constexpr size_t kBytes = 2 * sizeof(CopyFigures);
  NIBBLE_ASSIGN_OR_RETURN(backend->figures_, backend->memory_.Allocate(kBytes));
  status = backend->memory_.Fill(backend->figures_.data(), 0, kBytes);
  if (!status.ok()) return status;
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
  args.x = {request.x.data, request.x.rows, request.x.cols, request.x.stride,
            request.x.dtype == DType::kF32};
  for (const CopyRequest* copy : {&request.row, &request.column}) {
    if (copy->out == nullptr) continue;
    args.copy[args.copies] = ArgsOf(request, *copy, figures_.data<CopyFigures>() + args.copies);
    ++args.copies;
  }
  return args;
}

absl::Status CudaBackend::Quantize(const QuantizeRequest& request) {
  if (absl::Status status = Validate(request); !status.ok()) return status;
  for (const CopyRequest* copy : {&request.row, &request.column}) {
    if (copy->out == nullptr) continue;
    if (absl::Status status = CheckSupported(*copy->out); !status.ok()) return status;
  }
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

absl::Status CudaBackend::EnqueueAmax(const QuantizeArgs& args) {
  const bool empty = args.x.rows * args.x.cols == 0;
  if (!empty && !naive_only_ && gpu::TileAmaxTakes(args)) {
    Ran("tile amax");
    return StatusOf(gpu::LaunchTileAmax(args, processors_, stream()), "launch of the amax kernel");
  }
  for (int i = 0; i < args.copies && !empty; ++i) {
    if (args.copy[i].amax != nullptr) continue;
    Ran(absl::StrCat("naive amax ", NameOf(args.copy[i])));
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
  bool tiled[2] = {};
  if (!naive_only_ && gpu::TileTakes(args)) {
    tiled[0] = tiled[1] = true;
    Ran(absl::StrCat("tile ", NamesOf(args)));
    NIBBLE_RETURN_IF_ERROR(StatusOf(gpu::LaunchTile(args, stream()), "launch of the tile kernel"));
  } else {
    for (int i = 0; i < args.copies && !naive_only_; ++i) {
      const QuantizeArgs one = OnlyCopy(args, i);
      if (!gpu::TileTakes(one)) continue;
      tiled[i] = true;
      Ran(absl::StrCat("tile ", NamesOf(one)));
      NIBBLE_RETURN_IF_ERROR(StatusOf(gpu::LaunchTile(one, stream()), "launch of the tile kernel"));
    }
  }
  for (int i = 0; i < args.copies; ++i) {
    if (tiled[i] && !statistics[i]) continue;
    QuantizeArgs run = args;
    if (tiled[i]) {
      run.copy[i].codes = nullptr;
      run.copy[i].emulated = nullptr;
      run.copy[i].count_non_finite = false;
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

absl::Status CudaBackend::Wait(const Event& event) {
  NIBBLE_RETURN_IF_ERROR(StatusOf(cudaEventSynchronize(static_cast<const CudaEvent&>(event).get()),
                                  "cudaEventSynchronize"));
  return error_.Get();
}

absl::StatusOr<bool> CudaBackend::HasPassed(const Event& event) {
  const cudaError_t reached = cudaEventQuery(static_cast<const CudaEvent&>(event).get());
  if (reached == cudaErrorNotReady) return false;
  NIBBLE_RETURN_IF_ERROR(StatusOf(reached, "cudaEventQuery"));
  NIBBLE_RETURN_IF_ERROR(error_.Get());
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
  return transfers_.Synchronize();
}

}  // namespace nibble
