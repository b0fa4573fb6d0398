#include "worker/trainer/model/linear.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace nibble {

Linear::Linear(const Device& device, const ParameterView& parameters, int64_t linear, DType dtype)
    : device_(device),
      index_(linear),
      info_(parameters.outline().linears[linear]),
      dtype_(dtype),
      weight_(parameters.matrix(info_.weight)),
      dweight_(parameters.gradient(info_.weight)) {
  if (info_.bias) {
    bias_ = parameters.weight(info_.weight + 1);
    dbias_ = parameters.gradient(info_.weight + 1);
  }
}

namespace {

// Whether a copy of a strip of `rows` rows has the codes and scales that the copy of the whole
// matrix has there, given its amax: no block and no transform reaches beyond a strip, nor random
// bits.
bool StripsAreParts(const OperandSpec& spec, Orientation orientation, int64_t rows) {
  if (rows == 0 || spec.rounding != Rounding::kNearest) return false;
  const bool column = orientation == Orientation::kColumn;
  if (column && spec.hadamard.size > 0 && rows % spec.hadamard.size != 0) return false;
  const int along = column ? spec.block.cols : spec.block.rows;  // the block's rows of the source
  if (along != BlockShape::kWhole) return rows % along == 0;
  return spec.block.rows == spec.block.cols;  // one scale, of the amax
}

}  // namespace

int64_t StripRowsOf(const ResolvedRecipe& recipe) {
  int64_t needed = Parameters::kStripRows.back();
  const auto fits = [](const OperandFormat& format, Orientation orientation, int64_t rows) {
    return !format.has_value() || StripsAreParts(*format, orientation, rows);
  };
  for (const LayerRecipe& layer : recipe.layers) {
    const OperandFormat& fprop = layer[OperandRole::kFpropWeight];
    const OperandFormat& dgrad = layer[OperandRole::kDgradWeight];
    // In ascending order; a weight that no strip serves needs none.
    for (auto rows = Parameters::kStripRows.rbegin(); rows != Parameters::kStripRows.rend();
         ++rows) {
      if (!fits(fprop, Orientation::kRow, *rows) || !fits(dgrad, Orientation::kColumn, *rows)) {
        continue;
      }
      needed = std::max(needed, *rows);
      break;
    }
  }
  return needed;
}

absl::Status Linear::SetRecipe(const LayerRecipe& recipe) {
  if (dtype_ == DType::kF32) {
    for (int i = 0; i < kOperandRoles; ++i) {
      const auto role = static_cast<OperandRole>(i);
      if (!recipe[role].has_value()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          info_.name, ": ", std::string(OperandRoleName(role)), " is ", recipe[role]->Name(),
          ", but with precision fp32 every operand is in high precision"));
    }
  }
  recipe_ = recipe;
  PlanProducts();
  return absl::OkStatus();
}

OperandPlan& Linear::PlanOf(OperandRole role) {
  GemmPlan& plan = plans_[static_cast<size_t>(GemmOf(role))];
  return OperandsOf(GemmOf(role))[0] == role ? plan.a : plan.b;
}

void Linear::PlanProducts() {
  using enum OperandRole;
  // The dimension of the source that each operand's sum runs over: see gemm.h.
  const auto use = [&](OperandRole role) -> GemmUse::Operand {
    const bool rows = role == kDgradWeight || GemmOf(role) == LinearGemm::kWgrad;
    return {.spec = recipe_[role],
            .dtype = dtype_,
            .contract = rows ? Contract::kRows : Contract::kCols};
  };
  for (const LinearGemm gemm : kAllLinearGemms) {
    const auto [a, b] = OperandsOf(gemm);
    plans_[static_cast<size_t>(gemm)] = device_.gemm.Wants({.a = use(a), .b = use(b)});
  }
  const OperandFormat& fprop = recipe_[kFpropWeight];
  OperandPlan& of_fprop = PlanOf(kFpropWeight);
  OperandPlan& of_dgrad = PlanOf(kDgradWeight);
  const EmulatedLayout layout = of_fprop.emulated();
  weight_serves_both_ = fprop.has_value() && fprop == recipe_[kDgradWeight] &&
                        fprop->block.rows == fprop->block.cols && fprop->hadamard.size == 0 &&
                        layout != EmulatedLayout::kNone && layout == of_dgrad.emulated();
  if (weight_serves_both_) of_fprop.packed = of_fprop.packed || of_dgrad.packed;
  const OperandFormat& dgrad = recipe_[kDgradWeight];
  const bool own_dgrad = dgrad.has_value() && !weight_serves_both_;
  packs_weight_ = gathered_ && (fprop.has_value() || own_dgrad) &&
                  (!fprop.has_value() || StripsAreParts(*fprop, Orientation::kRow, strip_rows_)) &&
                  (!own_dgrad || StripsAreParts(*dgrad, Orientation::kColumn, strip_rows_));
  if (packs_weight_) of_fprop.packed = of_dgrad.packed = true;
  packed_arrive_ = bf16_arrives_ = amax_is_known_ = false;
}

absl::Status Linear::Create(Copy& copy, Memory& memory, Memory& figures, OperandRole role,
                            Orientation orientation, int64_t rows, int64_t cols) {
  copy = {};
  const OperandFormat& format = recipe_[role];
  if (!format.has_value()) return absl::OkStatus();
  copy.role = role;
  const bool weight = role == OperandRole::kFpropWeight || role == OperandRole::kDgradWeight;
  const bool packed_only = weight && packs_weight_;
  absl::StatusOr<QuantizedTensor> tensor = QuantizedTensor::Create(
      memory, {.spec = *format,
               .orientation = orientation,
               .rows = rows,
               .cols = cols,
               .packed = PlanOf(role).packed,
               .emulated = packed_only ? EmulatedLayout::kNone : PlanOf(role).emulated(),
               .figures = &figures});
  if (!tensor.ok()) {
    return absl::Status(tensor.status().code(),
                        absl::StrCat(info_.name, ", ", std::string(OperandRoleName(role)), ": ",
                                     tensor.status().message()));
  }
  copy.tensor = *std::move(tensor);
  return absl::OkStatus();
}

absl::Status Linear::Allocate(int64_t tokens, const Places& places) {
  using enum OperandRole;
  constexpr Orientation kRow = Orientation::kRow;
  constexpr Orientation kColumn = Orientation::kColumn;
  Region& step = places.step;
  Region& figures = places.figures;
  absl::Status status = Create(fprop_w_, step, figures, kFpropWeight, kRow, info_.out, info_.in);
  dgrad_w_ = {};
  if (status.ok() && !weight_serves_both_) {
    status = Create(dgrad_w_, step, figures, kDgradWeight, kColumn, info_.out, info_.in);
  }
  bf16_weight_ = Buffer();
  const bool plain = !recipe_[kFpropWeight].has_value() || !recipe_[kDgradWeight].has_value();
  if (status.ok() && plain && dtype_ != weight_.dtype) {
    NIBBLE_ASSIGN_OR_RETURN(Buffer buffer, step.Allocate(info_.out * info_.in * sizeof(uint16_t)));
    bf16_weight_ = std::move(buffer);
  }
  if (status.ok()) {
    status = Create(wgrad_x_, places.saved, figures, kWgradActivation, kColumn, tokens, info_.in);
  }
  places.transient.Rewind();
  if (status.ok()) {
    status = Create(fprop_x_, places.transient, figures, kFpropActivation, kRow, tokens, info_.in);
  }
  places.transient.Rewind();
  if (status.ok()) {
    status = Create(dgrad_dy_, places.transient, figures, kDgradGradient, kRow, tokens, info_.out);
  }
  if (status.ok()) {
    status =
        Create(wgrad_dy_, places.transient, figures, kWgradGradient, kColumn, tokens, info_.out);
  }
  return status;
}

CopyRequest Linear::Request(Copy& copy, const StepContext& context) const {
  if (!copy.tensor.has_value()) return {};
  // Each operand of each layer has its own random stream.
  const auto stream = static_cast<uint32_t>(index_ * kOperandRoles + static_cast<int>(copy.role));
  return {.out = &*copy.tensor,
          .random = {.seed = context.seed,
                     .stream = stream,
                     .step = static_cast<uint32_t>(context.step)},
          .step = context.step_on_device,
          .statistics = context.statistics};
}

Linear::WorkingCopies Linear::working_copies() {
  WorkingCopies copies;
  if (packs_weight_) {
    copies.row = fprop_w_.tensor ? &*fprop_w_.tensor : nullptr;
    copies.column = dgrad_w_.tensor ? &*dgrad_w_.tensor : nullptr;
  }
  copies.bf16 = bf16_weight_.data<uint16_t>();
  const bool quantised = fprop_w_.tensor || dgrad_w_.tensor;
  copies.reads_weight = quantised ? !packs_weight_ : !bf16_weight_;
  return copies;
}

namespace {

// Whether scales are computed from the amax of the whole tensor.
bool ScalesNeedAmax(const QuantizedTensor& tensor) {
  return tensor.format().tensor_scale ||
         tensor.spec().block == BlockShape{BlockShape::kWhole, BlockShape::kWhole};
}

}  // namespace

WorkingCopy Linear::updated_copy() {
  WorkingCopy copy = {.bf16 = bf16_weight_.data<uint16_t>()};
  for (Copy* of : {&fprop_w_, &dgrad_w_}) {
    if (!of->tensor || !ScalesNeedAmax(*of->tensor)) continue;
    // Where quantising has left it, so that it stays if there is no update.
    copy.amax = &of->tensor->head()->amax;
    break;
  }
  return copy;
}

CopyRequest Linear::WeightRequest(Copy& copy, const StepContext& context) {
  CopyRequest request = Request(copy, context);
  if (amax_is_known_ && copy.tensor && ScalesNeedAmax(*copy.tensor)) {
    request.amax = updated_copy().amax;
  }
  return request;
}

absl::Status Linear::QuantizeStrip(const ConstMatrix& rows, QuantizedTensor* row,
                                   QuantizedTensor* column, const float* amaxes, bool statistics) {
  const auto request = [&](QuantizedTensor* out, int64_t index) -> CopyRequest {
    if (out == nullptr) return {};
    const bool given = amaxes != nullptr && (ScalesNeedAmax(*out) || statistics);
    return {.out = out, .amax = given ? amaxes + index : nullptr, .statistics = statistics};
  };
  return device_.backend.Quantize(
      {.x = rows, .row = request(row, 0), .column = request(column, 1)});
}

absl::Status Linear::PrepareWeights(const StepContext& context) {
  if (bf16_weight_ && !bf16_arrives_) {
    NIBBLE_RETURN_IF_ERROR(device_.ops.elementwise().Run(
        Cast{.from = weight_,
             .to = MutableMatrix::OfBf16(bf16_weight_.data<uint16_t>(), info_.out, info_.in)}));
  }
  if (packed_arrive_ || (!fprop_w_.tensor && !dgrad_w_.tensor)) return absl::OkStatus();
  return device_.backend.Quantize({.x = weight_,
                                   .row = WeightRequest(fprop_w_, context),
                                   .column = WeightRequest(dgrad_w_, context)});
}

GemmSource Linear::WeightSource(OperandRole role) const {
  if (recipe_[role].has_value()) {
    const bool own = role == OperandRole::kDgradWeight && !weight_serves_both_;
    return &*(own ? dgrad_w_ : fprop_w_).tensor;
  }
  if (dtype_ == weight_.dtype) return weight_;
  return ConstMatrix::OfBf16(bf16_weight_.data<uint16_t>(), info_.out, info_.in);
}

bool Linear::quantizes_squared_relu() const {
  return fprop_x_.tensor && wgrad_x_.tensor && device_.backend.QuantizesSquaredRelu();
}

absl::Status Linear::Forward(const StepContext& context, const ConstMatrix& x,
                             const MutableMatrix& y, bool squared_relu) {
  if (fprop_x_.tensor || wgrad_x_.tensor) {
    NIBBLE_RETURN_IF_ERROR(device_.backend.Quantize(
        {.x = x,
         .placement = {.first_row = context.first_token, .global_rows = context.batch_tokens},
         .row = Request(fprop_x_, context),
         .column = Request(wgrad_x_, context),
         .squared_relu = squared_relu}));
  }
  const GemmSource source = fprop_x_.tensor ? GemmSource(&*fprop_x_.tensor) : GemmSource(x);
  return device_.gemm.Gemm(Fprop(source, WeightSource(OperandRole::kFpropWeight), y));
}

absl::Status Linear::AddBias(const MutableMatrix& y) {
  if (bias_ == nullptr) return absl::OkStatus();
  return device_.ops.elementwise().Forward(BiasForward{.y = y, .bias = bias_});
}

absl::Status Linear::Backward(const StepContext& context, const ConstMatrix& x,
                              const ConstMatrix& dy, const MutableMatrix& dx) {
  absl::Status status;
  if (bias_ != nullptr) {
    status = device_.ops.elementwise().Backward(BiasBackward{.dy = dy, .dbias = dbias_});
  }
  if (status.ok() && (dgrad_dy_.tensor || wgrad_dy_.tensor)) {
    status = device_.backend.Quantize(
        {.x = dy,
         .placement = {.first_row = context.first_token, .global_rows = context.batch_tokens},
         .row = Request(dgrad_dy_, context),
         .column = Request(wgrad_dy_, context)});
  }
  const auto source = [](const Copy& copy, const ConstMatrix& plain) {
    return copy.tensor ? GemmSource(&*copy.tensor) : GemmSource(plain);
  };
  if (status.ok()) {
    GemmRequest wgrad = Wgrad(source(wgrad_dy_, dy), source(wgrad_x_, x),
                              MutableMatrix::Of(dweight_, info_.out, info_.in));
    wgrad.accumulate = !context.new_gradients;
    status = device_.gemm.Gemm(wgrad);
  }
  if (status.ok()) {
    status = device_.gemm.Gemm(
        Dgrad(source(dgrad_dy_, dy), WeightSource(OperandRole::kDgradWeight), dx));
  }
  return status;
}

void Linear::AppendFigures(const char* heads, const char* figures,
                           std::vector<OperandFigures>& out) const {
  for (const Copy* copy : {&fprop_x_, &fprop_w_, &dgrad_dy_, &dgrad_w_, &wgrad_dy_, &wgrad_x_}) {
    if (!copy->tensor) continue;
    OperandFigures& added =
        out.emplace_back(OperandFigures{.linear = index_,
                                        .role = copy->role,
                                        .elements = copy->tensor->rows() * copy->tensor->cols()});
    const auto offset = reinterpret_cast<const char*>(copy->tensor->head()) - figures;
    std::memcpy(&added.head, heads + offset, sizeof added.head);
  }
}

}  // namespace nibble
