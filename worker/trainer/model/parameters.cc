#include "worker/trainer/model/parameters.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "common/bytes.h"
#include "common/status_macros.h"
#include "kernels/formats/initial_values.h"

namespace nibble {

namespace {

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

int64_t PaddedElements(const ParamInfo& param) {
  return RoundUp(param.elements(), kParameterAlign);
}

// Of a strip of a linear weight; 0: it has none.
int64_t StripElements(const ParamInfo& param) {
  if (param.linear < 0 || param.shape[0] % Parameters::kStripRows != 0) return 0;
  const int64_t strip = Parameters::kStripRows * param.shape[1];
  return strip % kParameterAlign == 0 ? strip : 0;
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

bool Parameters::has_strips(int64_t param) const {
  return buckets_[bucket_of_[param]].strips && StripElements(outline_.params[param]) > 0;
}

Parameters::Layout Parameters::Place(size_t first, size_t end, bool strips) const {
  constexpr int64_t kMostCommon = int64_t{1} << 32;  // elements: more than the padding allowed
  Layout layout;
  int64_t common = kParameterAlign;  // what a part is a multiple of
  for (size_t i = first; i < end; ++i) {
    const int64_t strip = strips ? StripElements(outline_.params[i]) : 0;
    if (strip > 0) {
      layout.elements = RoundUp(layout.elements, strip);
      common = std::min(std::lcm(common, strip), kMostCommon);
    }
    layout.offsets.push_back(layout.elements);
    layout.elements += PaddedElements(outline_.params[i]);
  }
  layout.elements = RoundUp(layout.elements, common * options_.world);
  return layout;
}

void Parameters::LayOut() {
  const std::vector<int64_t> blocks = CompletingBlocks(outline_);
  // From the last parameter on: a bucket ends at a block's first parameter once it is large enough.
  std::vector<bool> begins(blocks.size(), false);
  int64_t bytes = 0;
  for (size_t i = blocks.size(); i-- > 0;) {
    bytes += PaddedElements(outline_.params[i]) * int64_t{sizeof(float)};
    const bool first_of_block = i == 0 || blocks[i - 1] != blocks[i];
    begins[i] = i == 0 || (first_of_block && bytes >= options_.bucket_bytes);
    if (begins[i]) bytes = 0;
  }
  for (size_t first = 0; first < blocks.size();) {
    size_t end = first + 1;
    while (end < blocks.size() && !begins[end]) ++end;
    Layout layout = Place(first, end, false);
    bool strips = false;
    if (options_.world > 1) {
      const int64_t most = layout.elements + std::max(layout.elements / 4, kFreePadding);
      Layout with_strips = Place(first, end, true);
      strips = with_strips.elements <= most;
      if (strips) layout = std::move(with_strips);
    }
    for (const int64_t offset : layout.offsets) {
      offsets_.push_back(elements_ + offset);
      bucket_of_.push_back(static_cast<int64_t>(buckets_.size()));
    }
    buckets_.push_back({.first = elements_,
                        .elements = layout.elements,
                        .block = blocks[first],
                        .begins = blocks[end - 1],
                        .strips = strips});
    elements_ += layout.elements;
    first = end;
  }
  for (size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].gradient_slot = static_cast<int>((buckets_.size() - 1 - b) % 2);
  }
  if (outline_.spec.tied_head) {
    buckets_.front().begins = outline_.spec.blocks();
    buckets_.front().gradient_slot = buckets_.front().weight_slot = kSlots - 1;
  }
}

std::array<int64_t, Parameters::kSlots> Parameters::SlotSizes(int Bucket::*slot) const {
  std::array<int64_t, kSlots> sizes = {};
  for (const Bucket& bucket : buckets_) {
    sizes[bucket.*slot] = std::max(sizes[bucket.*slot], bucket.elements);
  }
  return sizes;
}

size_t Parameters::BytesOfGradientTurns() const {
  if (options_.world == 1 || gradients_take_turns()) return 0;
  const std::array<int64_t, kSlots> sizes = SlotSizes(&Bucket::gradient_slot);
  const int64_t slots = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  return static_cast<size_t>(elements_ - slots) * sizeof(float);
}

absl::Status Parameters::Allocate(const Device& device, bool take_turns, int Bucket::*slot,
                                  Buffer& buffer, std::vector<float*>& places) {
  const std::array<int64_t, kSlots> sizes = SlotSizes(slot);
  std::array<int64_t, kSlots> begins = {};
  std::exclusive_scan(sizes.begin(), sizes.end(), begins.begin(), int64_t{0});
  const int64_t bytes =
      int64_t{sizeof(float)} * (take_turns ? begins.back() + sizes.back() : elements_);
  NIBBLE_ASSIGN_OR_RETURN(buffer, device.memory().Allocate(static_cast<size_t>(bytes)));
  for (const Bucket& bucket : buckets_) {
    const int64_t first = take_turns ? begins[bucket.*slot] : bucket.first;
    places.push_back(buffer.data<float>() + first);
  }
  return device.ops.elementwise().Zero(buffer.data(), bytes);
}

absl::Status Parameters::Initialise(const Device& device, uint64_t seed) {
  ElementwiseOps& ops = device.ops.elementwise();
  size_t param = 0;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const auto bucket = static_cast<int64_t>(b);
    const int64_t elements = buckets_[b].elements;
    // Nothing of the slot's previous bucket stays in the gaps.
    if (weights_take_turns()) {
      NIBBLE_RETURN_IF_ERROR(ops.Zero(bucket_weights(bucket), elements * int64_t{sizeof(float)}));
    }
    for (; param < outline_.params.size(); ++param) {
      const auto index = static_cast<int64_t>(param);
      if (bucket_of_[index] != bucket) break;
      NIBBLE_RETURN_IF_ERROR(ops.Run(InitialValues(outline_.params[param], seed, weight(index))));
    }
    if (!weights_take_turns()) continue;
    const int64_t part = elements / options_.world;
    NIBBLE_RETURN_IF_ERROR(
        device.backend.compute().Copy({.to = masters() + buckets_[b].first / options_.world,
                                       .from = bucket_weights(bucket) + options_.rank * part,
                                       .line_bytes = static_cast<size_t>(part) * sizeof(float)}));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Parameters>> Parameters::Create(const Device& device,
                                                               const Outline& outline,
                                                               uint64_t seed,
                                                               const Options& options) {
  std::unique_ptr<Parameters> result(new Parameters);
  Parameters& p = *result;
  p.outline_ = outline;
  p.options_ = options;
  p.LayOut();
  NIBBLE_RETURN_IF_ERROR(p.Allocate(device, p.weights_take_turns(), &Bucket::weight_slot,
                                    p.weights_, p.bucket_weights_));
  NIBBLE_RETURN_IF_ERROR(p.Allocate(device, p.gradients_take_turns(), &Bucket::gradient_slot,
                                    p.gradients_, p.bucket_gradients_));
  if (p.weights_take_turns()) {
    const int64_t part = p.elements_ / options.world;
    NIBBLE_ASSIGN_OR_RETURN(p.masters_,
                            device.memory().Allocate(static_cast<size_t>(part) * sizeof(float)));
  }
  NIBBLE_RETURN_IF_ERROR(p.Initialise(device, seed));
  return result;
}

ConstMatrix Parameters::matrix(int64_t param) const {
  const ParamInfo& info = outline_.params[param];
  return ConstMatrix::Of(weight(param), info.shape[0], info.elements() / info.shape[0]);
}

}  // namespace nibble
