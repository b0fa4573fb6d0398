#include "worker/trainer/optim/weight_gathers.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/status_macros.h"

namespace nibble {
namespace {

constexpr int64_t kFp32Bytes = 4, kBf16Bytes = 2;
constexpr int64_t kMessageAlign = 256;  // of codes and scales in a message
// Of heads in memory; each begins with its amax.
constexpr int64_t kHeadBytes = sizeof(QuantHead);
static_assert(offsetof(QuantHead, amax) == 0);

int64_t AlignUp(int64_t bytes) {
  return (bytes + kMessageAlign - 1) / kMessageAlign * kMessageAlign;
}

// Bytes of `rows` rows of a packed weight.
int64_t CodeBytes(const QuantizedTensor& weight, int64_t rows) {
  return rows * weight.code_row_bytes();
}
int64_t ScaleBytesOf(const QuantizedTensor& weight, int64_t rows) {
  return rows / weight.block_rows() * weight.scale_cols() * ScaleBytes(weight.format().scale);
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightGathers>> WeightGathers::Create(const Device& device,
                                                                     const Parameters& parameters,
                                                                     const ShardedAdamW& optimizer,
                                                                     Collective& collective) {
  std::unique_ptr<WeightGathers> gathers(
      new WeightGathers(device, parameters, optimizer, collective));
  const Outline& outline = parameters.outline();
  gathers->bucket_of_part_.assign(static_cast<size_t>(outline.spec.blocks()) + 2, 0);
  gathers->bucket_of_part_.back() = static_cast<int64_t>(parameters.buckets().size()) - 1;
  for (size_t i = 0; i < outline.params.size(); ++i) {
    const int64_t block = outline.params[i].block;
    if (block < 0) continue;
    gathers->bucket_of_part_[block + 1] = parameters.bucket_of(static_cast<int64_t>(i));
  }
  int64_t largest = 0;
  for (const Bucket& bucket : parameters.buckets()) largest = std::max(largest, bucket.elements);
  NIBBLE_ASSIGN_OR_RETURN(gathers->messages_,
                          device.memory().Allocate(static_cast<size_t>(kFp32Bytes * largest)));
  NIBBLE_ASSIGN_OR_RETURN(gathers->packed_, device.backend.NewEvent());
  NIBBLE_ASSIGN_OR_RETURN(gathers->arrived_, device.backend.NewEvent());
  const auto linears = static_cast<int64_t>(outline.linears.size());
  NIBBLE_ASSIGN_OR_RETURN(gathers->heads_,
                          device.memory().Allocate(static_cast<size_t>(linears * kHeadBytes)));
  NIBBLE_ASSIGN_OR_RETURN(gathers->amaxes_,
                          device.memory().Allocate(static_cast<size_t>(linears * kFp32Bytes)));
  NIBBLE_ASSIGN_OR_RETURN(CollectiveTurn turn, CollectiveTurn::Create(device.backend));
  gathers->turn_.emplace(std::move(turn));
  return gathers;
}

absl::StatusOr<Buffer> WeightGathers::Placed::Allocate(size_t bytes) {
  char* const place = next_;
  next_ += AlignUp(static_cast<int64_t>(bytes));
  return Buffer(this, place, bytes);
}
absl::Status WeightGathers::Placed::CopyIn(void*, const void*, size_t) {
  return absl::UnimplementedError("placed memory is not copied");
}
absl::Status WeightGathers::Placed::CopyOut(void*, const void*, size_t) {
  return absl::UnimplementedError("placed memory is not copied");
}

WeightGathers::Message WeightGathers::Plan(int64_t bucket, const std::vector<bool>& in_bf16,
                                           bool packs) const {
  const Bucket& info = parameters_.buckets()[bucket];
  const std::vector<Linear*> linears = model_->linears();
  const int64_t part = info.elements / collective_.world();
  Message message;
  message.runs.resize(static_cast<size_t>(collective_.world()));
  std::vector<int64_t> bytes(message.runs.size(), 0);
  for (size_t i = 0; i < in_bf16.size(); ++i) {
    const auto param = static_cast<int64_t>(i);
    if (parameters_.bucket_of(param) != bucket) continue;
    const ParamInfo& weight = parameters_.outline().params[i];
    const QuantizedTensor* packed =
        packs && weight.linear >= 0 ? linears[weight.linear]->packed_weight() : nullptr;
    const Form form = packed != nullptr ? Form::kPacked : in_bf16[i] ? Form::kBf16 : Form::kFp32;
    const int64_t begin = parameters_.offset(param) - info.first;
    const int64_t padded =
        (weight.elements() + kParameterAlign - 1) / kParameterAlign * kParameterAlign;
    const int64_t end = begin + (packed != nullptr ? weight.elements() : padded);
    for (int64_t rank = begin / part; rank * part < end; ++rank) {
      const int64_t from = std::max(begin, rank * part);
      const int64_t elements = std::min(end, (rank + 1) * part) - from;
      std::vector<Run>& runs = message.runs[rank];
      if (packed != nullptr) {
        const int64_t rows = elements / packed->cols();
        const int64_t at = AlignUp(bytes[rank]);
        const int64_t scales_at = at + AlignUp(CodeBytes(*packed, rows));
        runs.push_back({.first = from,
                        .elements = elements,
                        .form = form,
                        .at = at,
                        .scales_at = scales_at,
                        .linear = weight.linear,
                        .row = (from - begin) / packed->cols()});
        bytes[rank] = scales_at + AlignUp(ScaleBytesOf(*packed, rows));
        continue;
      }
      if (runs.empty() || runs.back().form != form ||
          runs.back().first + runs.back().elements != from) {
        runs.push_back({.first = from, .elements = 0, .form = form, .at = bytes[rank]});
      }
      runs.back().elements += elements;
      bytes[rank] += elements * (form == Form::kBf16 ? kBf16Bytes : kFp32Bytes);
    }
  }
  message.bytes = AlignUp(*std::max_element(bytes.begin(), bytes.end()));
  return message;
}

absl::Status WeightGathers::SetModel(Model& model) {
  model_ = &model;
  const std::vector<Linear*> linears = model.linears();
  any_packed_ = std::any_of(linears.begin(), linears.end(),
                            [](Linear* linear) { return linear->packed_weight() != nullptr; });
  exact_plans_.clear();
  packed_plans_.clear();
  const std::vector<bool> in_bf16 = model.ReadInBf16();
  for (size_t b = 0; b < parameters_.buckets().size(); ++b) {
    exact_plans_.push_back(Plan(static_cast<int64_t>(b), in_bf16, false));
    packed_plans_.push_back(Plan(static_cast<int64_t>(b), in_bf16, true));
  }
  return MakeStrips();
}

absl::Status WeightGathers::MakeStrips() {
  const std::vector<Linear*> linears = model_->linears();
  const int rank = collective_.rank();
  strips_.clear();
  strip_of_.assign(linears.size(), -1);
  for (size_t b = 0; b < packed_plans_.size(); ++b) {
    const auto bucket = static_cast<int64_t>(b);
    char* const mine = messages_.data<char>() + rank * packed_plans_[b].bytes;
    const float* masters = optimizer_.weights(bucket);
    const int64_t first = rank * optimizer_.parts()[bucket].elements;
    for (const Run& run : packed_plans_[b].runs[rank]) {
      if (run.form != Form::kPacked) continue;
      Linear* const linear = linears[run.linear];
      const QuantizedTensor& weight = *linear->packed_weight();
      const int64_t rows = run.elements / weight.cols();
      head_place_.Next(heads_.data<char>() + run.linear * kHeadBytes);
      placed_.Next(mine + run.at);
      NIBBLE_ASSIGN_OR_RETURN(QuantizedTensor packed,
                              QuantizedTensor::Create(placed_, {.spec = weight.spec(),
                                                                .rows = rows,
                                                                .cols = weight.cols(),
                                                                .figures = &head_place_}));
      strip_of_[run.linear] = static_cast<int64_t>(strips_.size());
      strips_.push_back({.linear = linear,
                         .rows = ConstMatrix::Of(masters + run.first - first, rows, weight.cols()),
                         .packed = std::move(packed)});
    }
  }
  return absl::OkStatus();
}

absl::Status WeightGathers::AgreeOnAmax() {
  Queue& compute = device_.backend.compute();
  const std::vector<Linear*> linears = model_->linears();
  const auto count = static_cast<int64_t>(linears.size());
  NIBBLE_RETURN_IF_ERROR(device_.ops.elementwise().Zero(heads_.data(), count * kHeadBytes));
  // The codes, made with another amax, are lost.
  for (Strip& strip : strips_) {
    NIBBLE_RETURN_IF_ERROR(strip.linear->QuantizeStrip(strip.rows, strip.packed, nullptr));
  }
  NIBBLE_RETURN_IF_ERROR(compute.Copy({.to = amaxes_.data(),
                                       .from = heads_.data(),
                                       .line_bytes = static_cast<size_t>(kFp32Bytes),
                                       .lines = linears.size(),
                                       .to_pitch = static_cast<size_t>(kFp32Bytes),
                                       .from_pitch = static_cast<size_t>(kHeadBytes)}));
  NIBBLE_RETURN_IF_ERROR(turn_->Run(
      [&] { return collective_.AllReduce(amaxes_.data<float>(), count, Reduction::kMax); }));
  // Each rank counts the NaN of its own rows.
  for (int64_t i = 0; i < count; ++i) {
    const QuantizedTensor* weight = linears[i]->packed_weight();
    if (weight == nullptr) continue;
    NIBBLE_RETURN_IF_ERROR(compute.Copy({.to = weight->head(),
                                         .from = heads_.data<QuantHead>() + i,
                                         .line_bytes = static_cast<size_t>(kHeadBytes)}));
    NIBBLE_RETURN_IF_ERROR(compute.Copy({.to = &weight->head()->amax,
                                         .from = amaxes_.data<float>() + i,
                                         .line_bytes = static_cast<size_t>(kFp32Bytes)}));
  }
  return absl::OkStatus();
}

absl::Status WeightGathers::BeginStep(bool packs) {
  in_slot_.fill(-1);
  copied_ = arriving_ = -1;
  packs_ = packs && any_packed_;
  for (Linear* linear : model_->linears()) {
    linear->set_packed_weight_arrives(packs_ && linear->packed_weight() != nullptr);
  }
  // The last message, whose memory strips use, has been sent.
  NIBBLE_RETURN_IF_ERROR(device_.backend.compute().WaitFor(*arrived_));
  return packs_ ? AgreeOnAmax() : absl::OkStatus();
}

bool WeightGathers::InSlot(int64_t bucket) const {
  if (in_slot_[parameters_.buckets()[bucket].weight_slot] != bucket) return false;
  if (!packs_ || copied_ == bucket) return true;
  // Of a slot of its own, too: working copies are in memory that all buckets share.
  for (const std::vector<Run>& runs : PlanOf(bucket).runs) {
    for (const Run& run : runs) {
      if (run.form == Form::kPacked) return false;
    }
  }
  return true;
}

absl::Status WeightGathers::Pack(const Run& run, const float* from, char* message) {
  const int64_t rows = run.elements / kParameterAlign;
  switch (run.form) {
    case Form::kPacked: {
      Strip& strip = strips_[strip_of_[run.linear]];
      return strip.linear->QuantizeStrip(strip.rows, strip.packed,
                                         amaxes_.data<float>() + run.linear);
    }
    case Form::kBf16: {
      auto* to = reinterpret_cast<uint16_t*>(message + run.at);
      return device_.ops.elementwise().Run(
          Cast{.from = ConstMatrix::Of(from, rows, kParameterAlign),
               .to = MutableMatrix::OfBf16(to, rows, kParameterAlign)});
    }
    case Form::kFp32:
      break;
  }
  return device_.backend.compute().Copy(
      {.to = message + run.at,
       .from = from,
       .line_bytes = static_cast<size_t>(run.elements * kFp32Bytes)});
}

absl::Status WeightGathers::Unpack(const Run& run, const char* message, float* to) {
  Queue& compute = device_.backend.compute();
  const int64_t rows = run.elements / kParameterAlign;
  switch (run.form) {
    case Form::kPacked: {
      const QuantizedTensor& weight = *model_->linears()[run.linear]->packed_weight();
      const int64_t strip_rows = run.elements / weight.cols();
      NIBBLE_RETURN_IF_ERROR(
          compute.Copy({.to = weight.codes() + CodeBytes(weight, run.row),
                        .from = message + run.at,
                        .line_bytes = static_cast<size_t>(CodeBytes(weight, strip_rows))}));
      return compute.Copy(
          {.to = static_cast<char*>(weight.scales()) + ScaleBytesOf(weight, run.row),
           .from = message + run.scales_at,
           .line_bytes = static_cast<size_t>(ScaleBytesOf(weight, strip_rows))});
    }
    case Form::kBf16: {
      const auto* from = reinterpret_cast<const uint16_t*>(message + run.at);
      return device_.ops.elementwise().Run(
          Cast{.from = ConstMatrix::OfBf16(from, rows, kParameterAlign),
               .to = MutableMatrix::Of(to, rows, kParameterAlign)});
    }
    case Form::kFp32:
      break;
  }
  return compute.Copy({.to = to,
                       .from = message + run.at,
                       .line_bytes = static_cast<size_t>(run.elements * kFp32Bytes)});
}

absl::Status WeightGathers::Begin(int64_t bucket) {
  Queue& compute = device_.backend.compute();
  Queue& transfers = device_.backend.transfers();
  const Message& plan = PlanOf(bucket);
  const int rank = collective_.rank();
  char* const mine = messages_.data<char>() + rank * plan.bytes;
  // The previous message has been unpacked in the compute queue, unless it was forgotten.
  NIBBLE_RETURN_IF_ERROR(compute.WaitFor(*arrived_));
  const float* masters = optimizer_.weights(bucket);
  const int64_t first = rank * optimizer_.parts()[bucket].elements;
  for (const Run& run : plan.runs[rank]) {
    NIBBLE_RETURN_IF_ERROR(Pack(run, masters + run.first - first, mine));
  }
  NIBBLE_RETURN_IF_ERROR(compute.Record(*packed_));
  NIBBLE_RETURN_IF_ERROR(transfers.WaitFor(*packed_));
  NIBBLE_RETURN_IF_ERROR(collective_.AllGather(mine, messages_.data(), plan.bytes));
  NIBBLE_RETURN_IF_ERROR(transfers.Record(*arrived_));
  arriving_ = bucket;
  ++gathers_;
  bytes_sent_ += plan.bytes;
  return absl::OkStatus();
}

absl::Status WeightGathers::Use(int64_t bucket, int64_t next) {
  if (!InSlot(bucket)) {
    if (arriving_ != bucket) NIBBLE_RETURN_IF_ERROR(Begin(bucket));
    NIBBLE_RETURN_IF_ERROR(device_.backend.compute().WaitFor(*arrived_));
    const Message& plan = PlanOf(bucket);
    for (size_t rank = 0; rank < plan.runs.size(); ++rank) {
      const char* message = messages_.data<char>() + static_cast<int64_t>(rank) * plan.bytes;
      for (const Run& run : plan.runs[rank]) {
        NIBBLE_RETURN_IF_ERROR(
            Unpack(run, message, parameters_.bucket_weights(bucket) + run.first));
      }
    }
    in_slot_[parameters_.buckets()[bucket].weight_slot] = copied_ = bucket;
    arriving_ = -1;
  }
  if (next < 0 || next == arriving_ || InSlot(next)) return absl::OkStatus();
  return Begin(next);
}

absl::Status WeightGathers::BeforeForward(int64_t part, bool then_backward) {
  const int64_t bucket = bucket_of_part_[part + 1];
  if (bucket != bucket_of_part_.back()) return Use(bucket, bucket + 1);
  const int64_t of_last_block = *(bucket_of_part_.end() - 2);
  return Use(bucket, then_backward ? of_last_block : -1);
}

absl::Status WeightGathers::BeforeBackward(int64_t part) {
  if (part < 0) return absl::OkStatus();
  const int64_t bucket = bucket_of_part_[part + 1];
  const int64_t first = bucket_of_part_[1];
  return Use(bucket, bucket == first ? -1 : bucket - 1);
}

}  // namespace nibble
