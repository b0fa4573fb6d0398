#include "worker/interop/tensor_plan.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/formats/scaling.h"
#include "worker/interop/hf_layout.h"

namespace nibble {

absl::StatusOr<std::vector<OperandFormat>> Nvfp4Layers(const ResolvedRecipe& recipe,
                                                       const Outline& outline) {
  if (recipe.layers.size() != outline.linears.size()) {
    return absl::InvalidArgumentError(absl::StrCat("recipe: it has ", recipe.layers.size(),
                                                   " layers, and model ", outline.spec.name,
                                                   " has ", outline.linears.size()));
  }
  std::vector<OperandFormat> formats;
  bool any = false;
  for (size_t i = 0; i < recipe.layers.size(); ++i) {
    const OperandFormat& format = recipe.layers[i][OperandRole::kFpropWeight];
    formats.push_back(format);
    if (!format.has_value()) continue;
    any = true;
    // Blocks are 1×16 or 16×16; either way a group of 16 shares a scale.
    if (format->format == Format::kNvfp4 && format->rounding == Rounding::kNearest &&
        format->hadamard.size == 0) {
      continue;
    }
    return absl::FailedPreconditionError(absl::StrCat(
        outline.linears[i].name, ": fprop.weight is ", format->Name(),
        "; quantised weights are written in nvfp4, rounded to nearest, without a transform"));
  }
  if (!any) {
    return absl::FailedPreconditionError(
        "recipe: every layer's fprop.weight is bf16, so there is nothing to quantise");
  }
  return formats;
}

absl::StatusOr<std::unique_ptr<Nvfp4Weights>> Nvfp4Weights::Create(WeightSource& source,
                                                                   int threads) {
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<CpuBackend> backend,
                          CpuBackend::Create({.threads = threads}));
  return std::unique_ptr<Nvfp4Weights>(new Nvfp4Weights(source, std::move(backend)));
}

absl::Status Nvfp4Weights::Quantise(int64_t param, const OperandSpec& spec) {
  if (param == param_ && spec == tensor_.spec()) return absl::OkStatus();
  param_ = -1;
  tensor_ = QuantizedTensor();  // before the next one is allocated
  const ParamInfo& info = source_.outline().params[static_cast<size_t>(param)];
  const int64_t out = info.shape[0];
  const int64_t in = info.shape[1];
  std::vector<float> weight(static_cast<size_t>(info.elements()));
  absl::Status status = source_.Read(info, absl::MakeSpan(weight));
  if (!status.ok()) return status;
  absl::StatusOr<QuantizedTensor> tensor =
      QuantizedTensor::Create(backend_->memory(), {.spec = spec, .rows = out, .cols = in});
  if (!tensor.ok()) {
    return absl::Status(tensor.status().code(),
                        absl::StrCat(info.name, ": ", tensor.status().message()));
  }
  status =
      backend_->Quantize({.x = ConstMatrix::Of(weight.data(), out, in), .row = {.out = &*tensor}});
  if (!status.ok()) return status;
  NIBBLE_ASSIGN_OR_RETURN(const QuantHead head, backend_->ReadHead(*tensor));
  if (head.non_finite != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(info.name, ": ", head.non_finite, " of its values are not finite"));
  }
  amax_ = head.amax;
  tensor_ = *std::move(tensor);
  param_ = param;
  return absl::OkStatus();
}

float Nvfp4Weights::global_scale() const {
  return Nvfp4::ForTensor(amax_, /*divide_first=*/false).encode;
}

absl::Span<const std::byte> Nvfp4Weights::Codes(int64_t first_row, int64_t rows) const {
  const int64_t row_bytes = tensor_.code_row_bytes();
  return {reinterpret_cast<const std::byte*>(tensor_.codes() + first_row * row_bytes),
          static_cast<size_t>(rows * row_bytes)};
}

absl::Span<const std::byte> Nvfp4Weights::Scales(int64_t row) const {
  const int64_t groups = tensor_.scale_cols();
  const auto* scales = static_cast<const std::byte*>(tensor_.scales());
  return {scales + row / tensor_.block_rows() * groups, static_cast<size_t>(groups)};
}

namespace {

// Elements converted at a time before they are written.
constexpr int64_t kPieceElements = int64_t{1} << 18;

// The parameter read last: tensors that are parts of one parameter are nearly always consecutive.
class LastParam {
 public:
  explicit LastParam(WeightSource& source) : source_(source) {}

  absl::StatusOr<absl::Span<const float>> Get(int64_t param) {
    if (param == param_) return values_;
    param_ = -1;
    const ParamInfo& info = source_.outline().params[static_cast<size_t>(param)];
    values_.resize(static_cast<size_t>(info.elements()));
    NIBBLE_RETURN_IF_ERROR(source_.Read(info, absl::MakeSpan(values_)));
    param_ = param;
    return values_;
  }

 private:
  WeightSource& source_;
  int64_t param_ = -1;
  std::vector<float> values_;
};

// Elements of the file's tensor, whose rows are our columns if it is transposed.
absl::Status Produce(const HfTensor& tensor, FileDType dtype, absl::Span<const float> values,
                     int64_t param_columns, SafetensorsWriter::Sink sink) {
  const absl::Span<const float> rows =
      values.subspan(static_cast<size_t>(tensor.first_row * param_columns),
                     static_cast<size_t>(tensor.rows * param_columns));
  std::vector<std::byte> piece;
  std::vector<float> turned;
  const int64_t total = tensor.elements();
  for (int64_t begin = 0; begin < total; begin += kPieceElements) {
    const int64_t count = std::min(kPieceElements, total - begin);
    absl::Span<const float> part =
        rows.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    if (tensor.transposed) {
      turned.resize(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = begin + i;
        turned[static_cast<size_t>(i)] =
            rows[static_cast<size_t>(at % tensor.rows * param_columns + at / tensor.rows)];
      }
      part = turned;
    }
    piece.clear();
    AppendElements(dtype, part, piece);
    NIBBLE_RETURN_IF_ERROR(sink(piece));
  }
  return absl::OkStatus();
}

// A_log, D and dt_bias, from which the scan's exponents are computed.
bool StaysF32(const ParamInfo& param) {
  for (const std::string_view name : {".A_log", ".D", ".dt_bias"}) {
    if (param.name.ends_with(name)) return true;
  }
  return false;
}

class Planner {
 public:
  Planner(WeightSource& source, const TensorPlanOptions& options)
      : source_(source), options_(options), last_(std::make_shared<LastParam>(source)) {}

  absl::StatusOr<TensorPlan> Make(const HfModelLayout& layout) {
    if (!options_.quantised.empty()) {
      NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Nvfp4Weights> packer,
                              Nvfp4Weights::Create(source_, options_.threads));
      packer_ = std::move(packer);
    }
    for (const HfTensor& tensor : layout.tensors) {
      const ParamInfo& param = source_.outline().params[static_cast<size_t>(tensor.param)];
      const bool of_linear = packer_ != nullptr && param.linear >= 0;
      const OperandFormat format =
          of_linear ? options_.quantised[static_cast<size_t>(param.linear)] : std::nullopt;
      if (format.has_value()) {
        NIBBLE_RETURN_IF_ERROR(AddPacked(tensor, *format));
        continue;
      }
      if (of_linear) plan_.kept_modules.emplace_back(tensor.module());
      AddPlain(tensor, param);
    }
    Share();
    return std::move(plan_);
  }

 private:
  void AddPlain(const HfTensor& tensor, const ParamInfo& param) {
    const FileDType dtype = StaysF32(param) ? FileDType::kF32 : options_.dtype;
    const int64_t columns = param.elements() / param.shape[0];
    plan_.tensors.push_back(
        {.name = tensor.name,
         .dtype = dtype,
         .shape = tensor.shape,
         .producer = [last = last_, &tensor, dtype, columns](SafetensorsWriter::Sink sink) {
           NIBBLE_ASSIGN_OR_RETURN(const absl::Span<const float> values, last->Get(tensor.param));
           return Produce(tensor, dtype, values, columns, sink);
         }});
  }

  absl::Status AddPacked(const HfTensor& tensor, const OperandSpec& spec) {
    NIBBLE_RETURN_IF_ERROR(packer_->Quantise(tensor.param, spec));
    const float global = packer_->global_scale();
    const int64_t in = tensor.shape[1];
    const auto packer = packer_;
    const auto name = [&](const char* suffix) {
      return absl::StrCat(std::string(tensor.module()), ".", suffix);
    };
    plan_.tensors.push_back({.name = name("weight_packed"),
                             .dtype = FileDType::kU8,
                             .shape = {tensor.rows, in / 2},
                             .producer = [packer, &tensor, spec](SafetensorsWriter::Sink sink) {
                               NIBBLE_RETURN_IF_ERROR(packer->Quantise(tensor.param, spec));
                               return sink(packer->Codes(tensor.first_row, tensor.rows));
                             }});
    plan_.tensors.push_back({.name = name("weight_scale"),
                             .dtype = FileDType::kF8E4M3,
                             .shape = {tensor.rows, in / 16},
                             .producer = [packer, &tensor, spec](SafetensorsWriter::Sink sink) {
                               absl::Status status = packer->Quantise(tensor.param, spec);
                               for (int64_t r = 0; status.ok() && r < tensor.rows; ++r) {
                                 status = sink(packer->Scales(tensor.first_row + r));
                               }
                               return status;
                             }});
    plan_.tensors.push_back({.name = name("weight_global_scale"),
                             .dtype = FileDType::kF32,
                             .shape = {1},
                             .producer =
                                 [global](SafetensorsWriter::Sink sink) {
                                   std::vector<std::byte> bytes;
                                   AppendElements(FileDType::kF32, {&global, 1}, bytes);
                                   return sink(bytes);
                                 },
                             .amax = packer_->amax()});
    return absl::OkStatus();
  }

  void Share() {
    int64_t filled = 0;
    for (const PlannedTensor& tensor : plan_.tensors) {
      const int64_t bytes = tensor.bytes();
      if (plan_.shards == 0 || (filled > 0 && bytes > options_.max_shard_bytes - filled)) {
        ++plan_.shards;
        filled = 0;
      }
      plan_.shard.push_back(plan_.shards - 1);
      filled += bytes;
      plan_.bytes += bytes;
    }
  }

  WeightSource& source_;
  const TensorPlanOptions& options_;
  std::shared_ptr<LastParam> last_;
  std::shared_ptr<Nvfp4Weights> packer_;
  TensorPlan plan_;
};

}  // namespace

int64_t PlannedTensor::bytes() const {
  int64_t n = FileDTypeSize(dtype);
  for (const int64_t d : shape) n *= d;
  return n;
}

absl::StatusOr<TensorPlan> PlanTensors(WeightSource& source, const HfModelLayout& layout,
                                       const TensorPlanOptions& options) {
  return Planner(source, options).Make(layout);
}

}  // namespace nibble
