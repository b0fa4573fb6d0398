#include "worker/trainer/model/parameters.h"

#include "common/bytes.h"
#include "common/status_macros.h"
#include "kernels/formats/initial_values.h"

namespace nibble {

namespace {

int64_t PaddedElements(const ParamInfo& param) {
  return (param.elements() + kParameterAlign - 1) / kParameterAlign * kParameterAlign;
}

// The block whose backward pass completes each parameter's gradient: that of the head and the final
// norm before the last block's, that of the embedding after the first's.
std::vector<int64_t> CompletingBlocks(const Outline& outline) {
  std::vector<int64_t> blocks;
  int64_t outside = -1;
  for (const ParamInfo& param : outline.params) {
    if (param.block >= 0) outside = outline.spec.blocks();
    blocks.push_back(param.block >= 0 ? param.block : outside);
  }
  return blocks;
}

}  // namespace

FillInitial InitialValues(const ParamInfo& param, uint64_t seed, float* out) {
  return {.init = param.init,
          .scale = param.scale,
          .random = {.seed = seed, .stream = Fnv1a32(param.name), .step = kInitialStep},
          .n = param.elements(),
          .out = out};
}

void Parameters::LayOut(int world, int64_t bucket_bytes) {
  const std::vector<int64_t> blocks = CompletingBlocks(outline_);
  // From the last parameter on: a bucket ends at a block's first parameter once it is large enough.
  std::vector<bool> begins(blocks.size(), false);
  int64_t bytes = 0;
  for (size_t i = blocks.size(); i-- > 0;) {
    bytes += PaddedElements(outline_.params[i]) * int64_t{sizeof(float)};
    const bool first_of_block = i == 0 || blocks[i - 1] != blocks[i];
    begins[i] = i == 0 || (first_of_block && bytes >= bucket_bytes);
    if (begins[i]) bytes = 0;
  }
  const int64_t part = kParameterAlign * world;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (begins[i]) {
      elements_ = (elements_ + part - 1) / part * part;
      buckets_.push_back({.first = elements_, .block = blocks[i]});
    }
    offsets_.push_back(elements_);
    bucket_of_.push_back(static_cast<int64_t>(buckets_.size()) - 1);
    elements_ += PaddedElements(outline_.params[i]);
  }
  elements_ = (elements_ + part - 1) / part * part;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const int64_t end = b + 1 < buckets_.size() ? buckets_[b + 1].first : elements_;
    buckets_[b].elements = end - buckets_[b].first;
  }
}

absl::StatusOr<std::unique_ptr<Parameters>> Parameters::Create(const Device& device,
                                                               const Outline& outline,
                                                               uint64_t seed, int world,
                                                               int64_t bucket_bytes) {
  std::unique_ptr<Parameters> result(new Parameters);
  result->outline_ = outline;
  result->LayOut(world, bucket_bytes);
  const int64_t bytes = result->elements_ * int64_t{sizeof(float)};
  ElementwiseOps& ops = device.ops.elementwise();
  for (Buffer* buffer : {&result->weights_, &result->gradients_}) {
    NIBBLE_ASSIGN_OR_RETURN(*buffer, device.memory().Allocate(static_cast<size_t>(bytes)));
    NIBBLE_RETURN_IF_ERROR(ops.Zero(buffer->data(), bytes));
  }
  for (size_t i = 0; i < outline.params.size(); ++i) {
    NIBBLE_RETURN_IF_ERROR(
        ops.Run(InitialValues(outline.params[i], seed, result->weight(static_cast<int64_t>(i)))));
  }
  return result;
}

ConstMatrix Parameters::matrix(int64_t param) const {
  const ParamInfo& info = outline_.params[param];
  return ConstMatrix::Of(weight(param), info.shape[0], info.elements() / info.shape[0]);
}

}  // namespace nibble
