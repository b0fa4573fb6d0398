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

constexpr char kHeadWeight[] = "head.weight";

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

int64_t PaddedElements(const ParamInfo& param) {
  return RoundUp(param.elements(), kParameterAlign);
}

// Of a strip of at most `rows` rows of a linear weight, or of as many as parts divide; 0: it is not
// one.
int64_t StripElements(const ParamInfo& param, int64_t rows) {
  if (param.linear < 0) return 0;
  return std::lcm(std::gcd(param.shape[0], rows) * param.shape[1], kParameterAlign);
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

int64_t Parameters::strip_rows(int64_t param) const {
  const ParamInfo& info = outline_.params[param];
  const int64_t rows = buckets_[bucket_of_[param]].strip_rows;
  return info.linear < 0 || rows == 0 ? 0 : std::gcd(info.shape[0], rows);
}

Parameters::Layout Parameters::Place(size_t first, size_t end, int64_t strip_rows) const {
  constexpr int64_t kMostCommon = int64_t{1} << 32;  // elements: more than the padding allowed
  Layout layout;
  int64_t common = kParameterAlign;  // what a part is a multiple of
  for (size_t i = first; i < end; ++i) {
    const int64_t strip = strip_rows > 0 ? StripElements(outline_.params[i], strip_rows) : 0;
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
    Layout layout = Place(first, end, 0);
    int64_t strip_rows = 0;
    for (const int64_t rows : kStripRows) {
      if (options_.world == 1 || rows > options_.most_strip_rows) continue;
      const int64_t share = rows == kStripRows.back() ? 4 : 16;
      Layout with_strips = Place(first, end, rows);
      if (with_strips.elements >
          layout.elements + std::max(layout.elements / share, kFreePadding)) {
        continue;
      }
      layout = std::move(with_strips);
      strip_rows = rows;
      break;
    }
    for (const int64_t offset : layout.offsets) {
      offsets_.push_back(elements_ + offset);
      bucket_of_.push_back(static_cast<int64_t>(buckets_.size()));
    }
    buckets_.push_back({.first = elements_,
                        .elements = layout.elements,
                        .block = blocks[first],
                        .begins = blocks[end - 1],
                        .strip_rows = strip_rows});
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

bool Parameters::HasAPlace(const ParamInfo& param) const {
  return options_.reads_fp32 || (param.linear < 0 && param.name != kHeadWeight);
}

absl::Status Parameters::AllocateWeights(const Device& device) {
  // Where each parameter is in the buffer.
  std::vector<int64_t> begins;
  int64_t elements = 0;
  if (!weights_are_gathered()) {
    begins = offsets_;
    elements = elements_;
  } else if (weights_take_turns()) {
    const std::array<int64_t, kSlots> sizes = SlotSizes(&Bucket::weight_slot);
    std::array<int64_t, kSlots> slots = {};
    std::exclusive_scan(sizes.begin(), sizes.end(), slots.begin(), int64_t{0});
    for (size_t i = 0; i < offsets_.size(); ++i) {
      const Bucket& bucket = buckets_[bucket_of_[i]];
      begins.push_back(slots[bucket.weight_slot] + offsets_[i] - bucket.first);
    }
    elements = slots.back() + sizes.back();
  } else {
    // A bucket's weights that have no place are together at the beginning.
    std::vector<int64_t> staged(buckets_.size(), 0);
    for (size_t i = 0; i < offsets_.size(); ++i) {
      const ParamInfo& param = outline_.params[i];
      if (!HasAPlace(param)) staged[bucket_of_[i]] += PaddedElements(param);
    }
    elements = *std::max_element(staged.begin(), staged.end());
    std::fill(staged.begin(), staged.end(), 0);
    for (size_t i = 0; i < offsets_.size(); ++i) {
      const ParamInfo& param = outline_.params[i];
      int64_t& next = HasAPlace(param) ? elements : staged[bucket_of_[i]];
      begins.push_back(next);
      next += PaddedElements(param);
    }
  }
  const int64_t bytes = elements * int64_t{sizeof(float)};
  NIBBLE_ASSIGN_OR_RETURN(weights_, device.memory().Allocate(static_cast<size_t>(bytes)));
  for (const int64_t begin : begins) weight_places_.push_back(weights_.data<float>() + begin);
  if (weights_are_gathered()) {
    const int64_t part = elements_ / options_.world;
    NIBBLE_ASSIGN_OR_RETURN(masters_,
                            device.memory().Allocate(static_cast<size_t>(part) * sizeof(float)));
  }
  return device.ops.elementwise().Zero(weights_.data(), bytes);
}

absl::Status Parameters::AllocateGradients(const Device& device) {
  const bool take_turns = gradients_take_turns();
  const std::array<int64_t, kSlots> sizes = SlotSizes(&Bucket::gradient_slot);
  std::array<int64_t, kSlots> begins = {};
  std::exclusive_scan(sizes.begin(), sizes.end(), begins.begin(), int64_t{0});
  const int64_t bytes =
      int64_t{sizeof(float)} * (take_turns ? begins.back() + sizes.back() : elements_);
  NIBBLE_ASSIGN_OR_RETURN(gradients_, device.memory().Allocate(static_cast<size_t>(bytes)));
  for (const Bucket& bucket : buckets_) {
    const int64_t first = take_turns ? begins[bucket.gradient_slot] : bucket.first;
    bucket_gradients_.push_back(gradients_.data<float>() + first);
  }
  return device.ops.elementwise().Zero(gradients_.data(), bytes);
}

absl::Status Parameters::Initialise(const Device& device, uint64_t seed) {
  ElementwiseOps& ops = device.ops.elementwise();
  const std::vector<ParamInfo>& params = outline_.params;
  if (!weights_are_gathered()) {
    for (size_t i = 0; i < params.size(); ++i) {
      NIBBLE_RETURN_IF_ERROR(
          ops.Run(InitialValues(params[i], seed, weight(static_cast<int64_t>(i)))));
    }
    return absl::OkStatus();
  }
  // A whole bucket at a time, of which the rank keeps its part.
  int64_t largest = 0;
  for (const Bucket& bucket : buckets_) largest = std::max(largest, bucket.elements);
  NIBBLE_ASSIGN_OR_RETURN(const Buffer whole,
                          device.memory().Allocate(static_cast<size_t>(largest) * sizeof(float)));
  size_t param = 0;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const Bucket& bucket = buckets_[b];
    // Nothing of the previous bucket stays in the gaps.
    NIBBLE_RETURN_IF_ERROR(ops.Zero(whole.data(), bucket.elements * int64_t{sizeof(float)}));
    for (; param < params.size() && bucket_of_[param] == static_cast<int64_t>(b); ++param) {
      float* const values = whole.data<float>() + offsets_[param] - bucket.first;
      NIBBLE_RETURN_IF_ERROR(ops.Run(InitialValues(params[param], seed, values)));
    }
    const int64_t part = bucket.elements / options_.world;
    NIBBLE_RETURN_IF_ERROR(
        device.backend.compute().Copy({.to = masters() + bucket.first / options_.world,
                                       .from = whole.data<float>() + options_.rank * part,
                                       .line_bytes = static_cast<size_t>(part) * sizeof(float)}));
  }
  // Before the bucket's memory is freed.
  return device.backend.Synchronize();
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
  NIBBLE_RETURN_IF_ERROR(p.AllocateWeights(device));
  NIBBLE_RETURN_IF_ERROR(p.AllocateGradients(device));
  NIBBLE_RETURN_IF_ERROR(p.Initialise(device, seed));
  return result;
}

ConstMatrix Parameters::matrix(int64_t param) const {
  const ParamInfo& info = outline_.params[param];
  return ConstMatrix::Of(weight(param), info.shape[0], info.elements() / info.shape[0]);
}

}  // namespace nibble
