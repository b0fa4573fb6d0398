#include "client/local/quantize_file.h"

#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/safetensors/reader.h"
#include "common/safetensors/writer.h"
#include "common/status_macros.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/formats/minifloat.h"
#include "kernels/gemm/expand.h"
#include "worker/interop/hf_layout.h"

namespace nibble {
namespace {

absl::Status InTensor(const std::string& name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("tensor '", absl::Utf8SafeCEscape(name),
                                                  "': ", std::string(status.message())));
}

template <class T>
T LoadElement(const TensorInfo& tensor, size_t index) {
  T value;
  std::memcpy(&value, tensor.data.data() + index * sizeof(T), sizeof(T));
  return value;
}

// The input may contain scales and amax of an earlier quantisation; a NaN among them means that the
// file is damaged.
absl::Status CheckScales(const TensorInfo& tensor) {
  if (!absl::EndsWith(tensor.name, ".scales") && !absl::EndsWith(tensor.name, ".amax")) {
    return absl::OkStatus();
  }
  const size_t size = static_cast<size_t>(FileDTypeSize(tensor.dtype));
  for (size_t i = 0; i < tensor.data.size() / size; ++i) {
    bool nan = false;
    if (tensor.dtype == FileDType::kF32) {
      nan = std::isnan(LoadElement<float>(tensor, i));
    } else if (tensor.dtype == FileDType::kF8E4M3) {
      nan = IsNonFiniteE4M3(LoadElement<uint8_t>(tensor, i));
    } else if (tensor.dtype == FileDType::kF8E8M0) {
      nan = LoadElement<uint8_t>(tensor, i) == E8M0::kNanCode;
    }
    if (nan) {
      return InTensor(tensor.name,
                      absl::InvalidArgumentError(absl::StrCat("scale number ", i, " is NaN")));
    }
  }
  return absl::OkStatus();
}

// The input's elements as the kernels read them: in place if the file has them aligned, F16
// converted to F32.
class AlignedSource {
 public:
  explicit AlignedSource(const TensorInfo& tensor) {
    const size_t size = static_cast<size_t>(FileDTypeSize(tensor.dtype));
    const std::byte* data = tensor.data.data();
    if (tensor.dtype == FileDType::kF16) {
      widened_.resize(tensor.data.size() / size);
      for (size_t i = 0; i < widened_.size(); ++i) {
        widened_[i] = DecodeElement(tensor.dtype, data, i);
      }
      data = reinterpret_cast<const std::byte*>(widened_.data());
    } else if (reinterpret_cast<uintptr_t>(data) % size != 0) {
      copy_.assign(tensor.data.begin(), tensor.data.end());
      data = copy_.data();
    }
    matrix_ = {data, tensor.dtype == FileDType::kBF16 ? DType::kBf16 : DType::kF32, tensor.shape[0],
               tensor.shape[1], tensor.shape[1]};
  }
  const ConstMatrix& matrix() const { return matrix_; }

 private:
  std::vector<std::byte> copy_;
  std::vector<float> widened_;
  ConstMatrix matrix_;
};

// InvalidArgument if the tensor cannot be quantised.
absl::StatusOr<QuantizedTensor> MakeOutput(Memory& memory, const TensorInfo& tensor,
                                           const QuantizeFileOptions& options) {
  if (tensor.shape.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", tensor.shape.size(), " dimensions, not 2"));
  }
  if (!IsWeightType(tensor.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("is ", std::string(FileDTypeName(tensor.dtype)), ", not F32, BF16 or F16"));
  }
  return QuantizedTensor::Create(
      memory, {.spec = options.spec,
               .orientation = options.transpose ? Orientation::kColumn : Orientation::kRow,
               .rows = tensor.shape[0],
               .cols = tensor.shape[1]});
}

FileDType ScaleDType(ScaleKind kind) {
  switch (kind) {
    case ScaleKind::kE4M3:
      return FileDType::kF8E4M3;
    case ScaleKind::kE8M0:
      return FileDType::kU8;
    case ScaleKind::kF32:
      break;
  }
  return FileDType::kF32;
}

absl::Span<const std::byte> Bytes(const void* data, int64_t bytes) {
  return {static_cast<const std::byte*>(data), static_cast<size_t>(bytes)};
}

// Quantises the tensor. With a given amax it first computes the tensor's own, because statistics
// are in units of the largest value.
absl::StatusOr<QuantHead> QuantizeOne(CpuBackend& backend, const ConstMatrix& x,
                                      const QuantizeFileOptions& options, QuantizedTensor& out) {
  QuantizeRequest request;
  request.x = x;
  CopyRequest& copy = options.transpose ? request.column : request.row;
  copy.out = &out;
  copy.random = options.random;
  copy.statistics = true;
  float own_amax = 0;
  const float given = options.amax.value_or(0.0f) + 0.0f;  // -0 as 0
  if (options.amax.has_value()) {
    NIBBLE_RETURN_IF_ERROR(backend.Quantize(request));
    NIBBLE_ASSIGN_OR_RETURN(const QuantHead head, backend.ReadHead(out));
    own_amax = head.amax;
    copy.amax = &given;
    copy.statistics_amax = &own_amax;
  }
  NIBBLE_RETURN_IF_ERROR(backend.Quantize(request));
  return backend.ReadHead(out);
}

absl::Status AddOutputs(SafetensorsWriter& writer, ThreadPool& pool, const std::string& name,
                        const QuantizedTensor& tensor) {
  const int64_t rows = tensor.copy_rows();
  const int64_t cols = tensor.copy_cols();
  const FormatInfo& format = tensor.format();
  NIBBLE_RETURN_IF_ERROR(writer.AddTensor(name + ".codes", FileDType::kU8,
                                          {rows, tensor.code_row_bytes()},
                                          Bytes(tensor.codes(), tensor.code_bytes())));
  NIBBLE_RETURN_IF_ERROR(writer.AddTensor(name + ".scales", ScaleDType(format.scale),
                                          {tensor.scale_rows(), tensor.scale_cols()},
                                          Bytes(tensor.scales(), tensor.scale_bytes())));
  NIBBLE_RETURN_IF_ERROR(writer.AddTensor(name + ".amax", FileDType::kF32, {1},
                                          Bytes(&tensor.head()->amax, sizeof(float))));
  // Dequantised values are computed while they are written, one tensor at a time, to save memory.
  const absl::Status status = writer.AddStreamedTensor(
      name + ".dequantized", FileDType::kF32, {rows, cols},
      [&tensor, &pool, rows, cols](SafetensorsWriter::Sink sink) -> absl::Status {
        std::vector<float> values(rows * cols);
        absl::Status made = Dequantize(tensor, &pool, values.data());
        return made.ok() ? sink(Bytes(values.data(), rows * cols * 4)) : made;
      });
  if (!status.ok() || !format.exact_in_bf16) return status;
  return writer.AddStreamedTensor(
      name + ".emulated", FileDType::kBF16, {rows, cols},
      [&tensor, &pool, rows, cols](SafetensorsWriter::Sink sink) -> absl::Status {
        std::vector<uint16_t> values(rows * cols);
        absl::Status made = ExpandOperand(tensor, &pool, values.data());
        return made.ok() ? sink(Bytes(values.data(), rows * cols * 2)) : made;
      });
}

absl::Status CheckOptions(const QuantizeFileOptions& options) {
  NIBBLE_RETURN_IF_ERROR(options.spec.Validate());
  if (!options.amax.has_value()) return absl::OkStatus();
  const FormatInfo& format = Info(options.spec.format);
  if (!std::isfinite(*options.amax) || *options.amax < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("amax: ", *options.amax, " is not a finite number from 0"));
  }
  if (!format.tensor_scale && options.spec.block.rows != BlockShape::kWhole) {
    return absl::InvalidArgumentError(
        absl::StrCat("amax: format ", std::string(format.name),
                     " has no scale per tensor; allowed: nvfp4, fp8-tensor, fp8-tensor-e5m2"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<QuantizeFileReport> QuantizeFile(const QuantizeFileOptions& options) {
  NIBBLE_RETURN_IF_ERROR(CheckOptions(options));
  NIBBLE_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(options.input));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<CpuBackend> backend,
                          CpuBackend::Create({.threads = options.threads, .isa = options.isa}));

  QuantizeFileReport report;
  report.backend = backend->Name();
  SafetensorsWriter writer;
  std::deque<QuantizedTensor> quantized;  // the writer borrows their buffers
  for (const TensorInfo& tensor : file.tensors()) {
    NIBBLE_RETURN_IF_ERROR(CheckScales(tensor));
    absl::StatusOr<QuantizedTensor> out = MakeOutput(backend->memory(), tensor, options);
    if (absl::IsInvalidArgument(out.status())) {
      absl::Status status = writer.AddTensor(tensor.name, tensor.dtype, tensor.shape, tensor.data);
      if (!status.ok()) return InTensor(tensor.name, status);
      report.copied.push_back({tensor.name, std::string(out.status().message())});
      continue;
    }
    if (!out.ok()) return InTensor(tensor.name, out.status());
    const AlignedSource source(tensor);
    quantized.push_back(*std::move(out));
    const absl::StatusOr<QuantHead> head =
        QuantizeOne(*backend, source.matrix(), options, quantized.back());
    if (!head.ok()) return InTensor(tensor.name, head.status());
    report.tensors.push_back(
        {tensor.name, tensor.shape, Finish(*head, tensor.shape[0] * tensor.shape[1])});
    absl::Status status = AddOutputs(writer, backend->pool(), tensor.name, quantized.back());
    if (!status.ok()) return InTensor(tensor.name, status);
  }
  if (report.tensors.empty()) {
    std::string message = absl::StrCat(options.input, ": none of its ", file.tensors().size(),
                                       " tensors can be quantised");
    if (!report.copied.empty()) {
      absl::StrAppend(&message, "; '", absl::Utf8SafeCEscape(report.copied[0].name),
                      "': ", report.copied[0].reason);
    }
    return absl::InvalidArgumentError(message);
  }
  const absl::Status status = writer.Write(options.output);
  // NotFound means a missing input; a missing output directory is FailedPrecondition.
  if (absl::IsNotFound(status)) return absl::FailedPreconditionError(status.message());
  if (!status.ok()) return status;
  return report;
}

}  // namespace nibble
