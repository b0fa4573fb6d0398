#include "worker/trainer/optim/weight_gathers.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/status_macros.h"
#include "kernels/tensor/quant_stats.h"

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

// Where the codes and scales of a strip of rows are in the copy of a whole weight. They are lines
// of the copy's rows, or all of it if the strip is of a row copy.
struct PlaceInCopy {
  int64_t begin, line_bytes, lines, pitch;  // bytes
};
PlaceInCopy CodesOf(const QuantizedTensor& copy, int64_t row, int64_t rows) {
  if (!copy.is_column()) return {row * copy.code_row_bytes(), rows * copy.code_row_bytes(), 1, 0};
  const int64_t bits = ElementBits(copy.format().element);
  return {row * bits / 8, rows * bits / 8, copy.copy_rows(), copy.code_row_bytes()};
}
PlaceInCopy ScalesOf(const QuantizedTensor& copy, int64_t row, int64_t rows) {
  const int64_t bytes = ScaleBytes(copy.format().scale);
  const int64_t row_bytes = copy.scale_cols() * bytes;
  // One scale of the whole weight: every strip has it.
  if (copy.spec().block.rows == BlockShape::kWhole) return {0, bytes, 1, 0};
  if (!copy.is_column()) {
    const int64_t blocks = copy.block_rows();
    return {row / blocks * row_bytes, rows / blocks * row_bytes, 1, 0};
  }
  const int64_t blocks = copy.block_cols();
  return {row / blocks * bytes, rows / blocks * bytes, copy.scale_rows(), row_bytes};
}
int64_t BytesOf(const PlaceInCopy& place) { return place.line_bytes * place.lines; }

CopyParts::Part Lines(const PlaceInCopy& place, void* copy, const char* from) {
  return {.to = static_cast<char*>(copy) + place.begin,
          .from = from,
          .elements = place.line_bytes,
          .lines = place.lines,
          .to_pitch = place.pitch,
          .from_pitch = place.line_bytes};
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
  const auto copies = static_cast<int64_t>(2 * outline.linears.size());
  NIBBLE_ASSIGN_OR_RETURN(
      gathers->heads_,
      device.memory().Allocate(static_cast<size_t>(collective.world() * copies * kHeadBytes)));
  NIBBLE_ASSIGN_OR_RETURN(gathers->amaxes_,
                          device.memory().Allocate(static_cast<size_t>(copies * kFp32Bytes)));
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

void WeightGathers::AppendCopies(const Linear::WorkingCopies& copies, const ParamInfo& weight,
                                 int64_t begin, int64_t from, int64_t to, bool packs,
                                 std::vector<Run>& runs, int64_t& bytes) const {
  const int64_t cols = weight.shape[1];
  const auto append_packed = [&](Form form, QuantizedTensor* copy) {
    if (copy == nullptr || !packs) return;
    const int64_t row = (from - begin) / cols, rows = (to - from) / cols;
    const int64_t at = AlignUp(bytes);
    const int64_t scales_at = at + AlignUp(BytesOf(CodesOf(*copy, row, rows)));
    runs.push_back({.first = from,
                    .elements = to - from,
                    .form = form,
                    .at = at,
                    .scales_at = scales_at,
                    .copy = copy,
                    .linear = weight.linear,
                    .row = row});
    bytes = scales_at + BytesOf(ScalesOf(*copy, row, rows));
  };
  append_packed(Form::kRowCopy, copies.row);
  append_packed(Form::kColumnCopy, copies.column);
  if (copies.bf16 == nullptr) return;
  const int64_t at = AlignUp(bytes);
  runs.push_back({.first = from,
                  .elements = to - from,
                  .form = Form::kBf16Copy,
                  .at = at,
                  .to = copies.bf16 + from - begin});
  bytes = at + kBf16Bytes * (to - from);
}

void WeightGathers::AppendPlain(Form form, int64_t param, int64_t begin, int64_t from, int64_t to,
                                std::vector<Run>& runs, int64_t& bytes) const {
  float* const place = parameters_.weight(param) + from - begin;
  const int64_t size = form == Form::kBf16 ? kBf16Bytes : kFp32Bytes;
  const bool joins = !runs.empty() && runs.back().form == form &&
                     runs.back().first + runs.back().elements == from &&
                     static_cast<float*>(runs.back().to) + runs.back().elements == place;
  if (!joins) {
    bytes = AlignUp(bytes);
    runs.push_back({.first = from, .elements = 0, .form = form, .at = bytes, .to = place});
  }
  runs.back().elements += to - from;
  bytes += size * (to - from);
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
    Linear::WorkingCopies copies = {.reads_weight = true};
    if (weight.linear >= 0) {
      copies = linears[weight.linear]->working_copies();
      // Every rank makes the copies of the weight.
      if (!packs && (copies.row != nullptr || copies.column != nullptr)) {
        copies = {.reads_weight = true};
      }
    } else if (param == model_->head().param() && model_->head().bf16_weight() != nullptr) {
      copies = {.bf16 = model_->head().bf16_weight()};
    }
    if (copies.reads_weight) copies.bf16 = nullptr;
    const int64_t begin = parameters_.offset(param) - info.first;
    const int64_t padded =
        (weight.elements() + kParameterAlign - 1) / kParameterAlign * kParameterAlign;
    const int64_t end = begin + (copies.reads_weight ? padded : weight.elements());
    for (int64_t rank = begin / part; rank * part < end; ++rank) {
      const int64_t from = std::max(begin, rank * part);
      const int64_t to = std::min(end, (rank + 1) * part);
      if (copies.reads_weight) {
        AppendPlain(in_bf16[i] ? Form::kBf16 : Form::kFp32, param, begin, from, to,
                    message.runs[rank], bytes[rank]);
      } else {
        AppendCopies(copies, weight, begin, from, to, packs, message.runs[rank], bytes[rank]);
        message.makes_copies = true;
      }
    }
  }
  message.bytes = AlignUp(*std::max_element(bytes.begin(), bytes.end()));
  message.mine.sent = message.bytes;
  for (const Run& run : message.runs[collective_.rank()]) {
    if (run.form == Form::kFp32) {
      message.mine.fp32 += kFp32Bytes * run.elements;
    } else if (run.form == Form::kBf16 || run.form == Form::kBf16Copy) {
      message.mine.bf16 += kBf16Bytes * run.elements;
    } else {
      const QuantizedTensor& copy = *run.copy;
      const int64_t rows = run.elements / copy.cols();
      message.mine.packed +=
          BytesOf(CodesOf(copy, run.row, rows)) + BytesOf(ScalesOf(copy, run.row, rows));
    }
  }
  return message;
}

absl::Status WeightGathers::SetModel(Model& model) {
  model_ = &model;
  Forget();
  any_packed_ = false;
  for (Linear* linear : model.linears()) {
    const Linear::WorkingCopies copies = linear->working_copies();
    any_packed_ = any_packed_ || copies.row != nullptr || copies.column != nullptr;
  }
  exact_plans_.clear();
  packed_plans_.clear();
  const std::vector<bool> in_bf16 = model.ReadInBf16();
  int64_t largest = 0;
  for (size_t b = 0; b < parameters_.buckets().size(); ++b) {
    for (const bool packs : {false, true}) {
      std::vector<Message>& plans = packs ? packed_plans_ : exact_plans_;
      plans.push_back(Plan(static_cast<int64_t>(b), in_bf16, packs));
      largest = std::max(largest, plans.back().bytes * collective_.world());
    }
  }
  if (static_cast<size_t>(largest) > messages_.bytes()) {
    // Copies of small strips may take more than their weights in FP32.
    NIBBLE_RETURN_IF_ERROR(device_.backend.Synchronize());
    messages_ = Buffer();
    NIBBLE_ASSIGN_OR_RETURN(messages_, device_.memory().Allocate(static_cast<size_t>(largest)));
  }
  for (size_t b = 0; b < exact_plans_.size(); ++b) {
    PlanCopies(static_cast<int64_t>(b), exact_plans_[b]);
    PlanCopies(static_cast<int64_t>(b), packed_plans_[b]);
  }
  NIBBLE_RETURN_IF_ERROR(MakeStrips());
  PlanHeads();
  return absl::OkStatus();
}

void WeightGathers::PlanCopies(int64_t bucket, Message& message) const {
  using As = CopyParts::As;
  const int rank = collective_.rank();
  const float* const masters = optimizer_.weights(bucket);
  const int64_t first = rank * optimizer_.parts()[bucket].elements;
  for (size_t r = 0; r < message.runs.size(); ++r) {
    char* const at = messages_.data<char>() + static_cast<int64_t>(r) * message.bytes;
    for (const Run& run : message.runs[r]) {
      if (run.copy != nullptr) {
        const int64_t rows = run.elements / run.copy->cols();
        message.unpack.push_back(
            Lines(CodesOf(*run.copy, run.row, rows), run.copy->codes(), at + run.at));
        // One scale of the whole weight arrives with every strip.
        if (run.copy->spec().block.rows == BlockShape::kWhole && run.row > 0) continue;
        message.unpack.push_back(
            Lines(ScalesOf(*run.copy, run.row, rows), run.copy->scales(), at + run.scales_at));
        continue;
      }
      const bool exact = run.form == Form::kFp32;
      const int64_t bytes = run.elements * (exact ? kFp32Bytes : kBf16Bytes);
      CopyParts::Part part = {.to = run.to, .from = at + run.at, .elements = bytes};
      if (run.form == Form::kBf16) {
        part.elements = run.elements;
        part.as = As::kWidened;
      }
      message.unpack.push_back(part);
      if (static_cast<int>(r) != rank) continue;
      message.pack.push_back({.to = at + run.at,
                              .from = masters + run.first - first,
                              .elements = exact ? bytes : run.elements,
                              .as = exact ? As::kBytes : As::kRounded});
    }
  }
}

void WeightGathers::PlanHeads() {
  constexpr int64_t kAfterAmax = kHeadBytes - kFp32Bytes;
  const std::vector<Linear*> linears = model_->linears();
  to_heads_.clear();
  for (size_t i = 0; i < linears.size(); ++i) {
    const Linear::WorkingCopies copies = linears[i]->working_copies();
    for (const QuantizedTensor* copy : {copies.row, copies.column}) {
      if (copy == nullptr) continue;
      const auto at = static_cast<int64_t>(2 * i) + (copy == copies.column ? 1 : 0);
      auto* const head = static_cast<char*>(static_cast<void*>(copy->head()));
      const auto* const mine = reinterpret_cast<const char*>(heads() + at);
      to_heads_.push_back({.to = head, .from = amaxes_.data<float>() + at, .elements = kFp32Bytes});
      to_heads_.push_back(
          {.to = head + kFp32Bytes, .from = mine + kFp32Bytes, .elements = kAfterAmax});
    }
  }
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
      const bool column = run.form == Form::kColumnCopy;
      if (run.form != Form::kRowCopy && !column) continue;
      const QuantizedTensor& weight = *run.copy;
      const int64_t rows = run.elements / weight.cols();
      if (strip_of_[run.linear] < 0) {
        strip_of_[run.linear] = static_cast<int64_t>(strips_.size());
        strips_.push_back(
            {.linear = linears[run.linear],
             .rows = ConstMatrix::Of(masters + run.first - first, rows, weight.cols())});
      }
      head_place_.Next(heads() + 2 * run.linear + (column ? 1 : 0));
      placed_.Next(mine + run.at);
      NIBBLE_ASSIGN_OR_RETURN(QuantizedTensor packed,
                              QuantizedTensor::Create(placed_, {.spec = weight.spec(),
                                                                .orientation = weight.orientation(),
                                                                .rows = rows,
                                                                .cols = weight.cols(),
                                                                .figures = &head_place_}));
      Strip& strip = strips_[strip_of_[run.linear]];
      (column ? strip.column : strip.row).emplace(std::move(packed));
    }
  }
  return absl::OkStatus();
}

absl::Status WeightGathers::AgreeOnAmax() {
  Queue& compute = device_.backend.compute();
  const std::vector<Linear*> linears = model_->linears();
  const auto count = static_cast<int64_t>(2 * linears.size());
  NIBBLE_RETURN_IF_ERROR(device_.ops.elementwise().Zero(heads(), count * kHeadBytes));
  // The codes, made with another amax, are lost.
  for (Strip& strip : strips_) NIBBLE_RETURN_IF_ERROR(strip.Quantize(nullptr, false));
  NIBBLE_RETURN_IF_ERROR(compute.Copy({.to = amaxes_.data(),
                                       .from = heads(),
                                       .line_bytes = static_cast<size_t>(kFp32Bytes),
                                       .lines = static_cast<size_t>(count),
                                       .to_pitch = static_cast<size_t>(kFp32Bytes),
                                       .from_pitch = static_cast<size_t>(kHeadBytes)}));
  NIBBLE_RETURN_IF_ERROR(turn_->Run(
      [&] { return collective_.AllReduce(amaxes_.data<float>(), count, Reduction::kMax); }));
  // Each rank counts the NaN of its own rows.
  return device_.ops.elementwise().Run(CopyParts{to_heads_});
}

absl::Status WeightGathers::CopyFigures(void* pinned) {
  if (!packs_) return absl::OkStatus();
  const auto bytes = static_cast<int64_t>(heads_.bytes()) / collective_.world();
  NIBBLE_RETURN_IF_ERROR(turn_->Run(
      [&] { return collective_.AllGather(heads(), heads_.data(), bytes, Beside::kNothing); }));
  return device_.backend.compute().CopyOut(pinned, heads_.data(), heads_.bytes());
}

void WeightGathers::MergeFigures(const void* copied, std::vector<OperandFigures>& figures) const {
  if (!packs_) return;
  const std::vector<Linear*> linears = model_->linears();
  const auto* heads = static_cast<const QuantHead*>(copied);
  for (OperandFigures& of : figures) {
    const bool column = of.role == OperandRole::kDgradWeight;
    if (!column && of.role != OperandRole::kFpropWeight) continue;
    const Linear::WorkingCopies copies = linears[of.linear]->working_copies();
    if ((column ? copies.column : copies.row) == nullptr) continue;
    const int64_t bucket = parameters_.bucket_of(linears[of.linear]->info().weight);
    of.head.non_finite = 0;
    of.head.stats = {};
    for (size_t rank = 0; rank < packed_plans_[bucket].runs.size(); ++rank) {
      const std::vector<Run>& runs = packed_plans_[bucket].runs[rank];
      // A rank without a strip has no figures.
      const bool owns = std::any_of(runs.begin(), runs.end(),
                                    [&](const Run& run) { return run.linear == of.linear; });
      if (!owns) continue;
      const QuantHead& part = heads[2 * (rank * linears.size() + of.linear) + (column ? 1 : 0)];
      of.head.non_finite += part.non_finite;
      Merge(part.stats, of.head.stats);
    }
  }
}

absl::Status WeightGathers::BeginStep(bool packs, bool statistics) {
  statistics_ = statistics;
  in_memory_.assign(parameters_.buckets().size(), false);
  in_slot_.fill(-1);
  copied_ = -1;
  // That of the first bucket may be on its way, or it begins now.
  const bool early = arriving_ == 0 && is_early_;
  if (!early) arriving_ = -1;
  is_early_ = false;
  packs_ = packs && any_packed_;
  for (Linear* linear : model_->linears()) {
    const Linear::WorkingCopies copies = linear->working_copies();
    const bool packed = copies.row != nullptr || copies.column != nullptr;
    linear->set_packed_arrive(packed && packs_);
    linear->set_bf16_arrives(copies.bf16 != nullptr && !copies.reads_weight && (!packed || packs_));
  }
  model_->head().set_bf16_arrives(model_->head().bf16_weight() != nullptr);
  // The last message, whose memory strips use, has been sent.
  NIBBLE_RETURN_IF_ERROR(device_.backend.compute().WaitFor(*arrived_));
  if (early) NIBBLE_RETURN_IF_ERROR(Unpack(0));
  if (packs_) NIBBLE_RETURN_IF_ERROR(AgreeOnAmax());
  return early ? absl::OkStatus() : Begin(0, Beside::kNothing);
}

absl::Status WeightGathers::BeginNextStep() {
  // Codes need the amax of whole weights, on which ranks agree when all are updated.
  for (const std::vector<Run>& runs : PlanOf(0).runs) {
    for (const Run& run : runs) {
      if (run.copy != nullptr) return absl::OkStatus();
    }
  }
  is_early_ = true;
  return Begin(0, Beside::kComputation);
}

bool WeightGathers::IsGathered(int64_t bucket) const {
  if (!parameters_.weights_take_turns()) return in_memory_[bucket];
  if (in_slot_[parameters_.buckets()[bucket].weight_slot] != bucket) return false;
  // Of a slot of its own, too: working copies are in memory that all buckets share.
  return copied_ == bucket || !PlanOf(bucket).makes_copies;
}

absl::Status WeightGathers::Begin(int64_t bucket, Beside beside) {
  Queue& compute = device_.backend.compute();
  Queue& transfers = device_.backend.transfers();
  const Message& plan = PlanOf(bucket);
  const int rank = collective_.rank();
  char* const mine = messages_.data<char>() + rank * plan.bytes;
  // The previous message has been unpacked in the compute queue, unless it was forgotten.
  NIBBLE_RETURN_IF_ERROR(compute.WaitFor(*arrived_));
  for (const Run& run : plan.runs[rank]) {
    if (run.copy == nullptr) continue;
    Strip& strip = strips_[strip_of_[run.linear]];
    // One pass makes both copies.
    if (run.form == Form::kColumnCopy && strip.row) continue;
    NIBBLE_RETURN_IF_ERROR(strip.Quantize(amaxes_.data<float>() + 2 * run.linear, statistics_));
  }
  NIBBLE_RETURN_IF_ERROR(device_.ops.elementwise().Run(CopyParts{plan.pack}));
  NIBBLE_RETURN_IF_ERROR(compute.Record(*packed_));
  NIBBLE_RETURN_IF_ERROR(transfers.WaitFor(*packed_));
  NIBBLE_RETURN_IF_ERROR(collective_.AllGather(mine, messages_.data(), plan.bytes, beside));
  NIBBLE_RETURN_IF_ERROR(transfers.Record(*arrived_));
  arriving_ = bucket;
  ++gathers_;
  bytes_.packed += plan.mine.packed;
  bytes_.bf16 += plan.mine.bf16;
  bytes_.fp32 += plan.mine.fp32;
  bytes_.sent += plan.mine.sent;
  return absl::OkStatus();
}

absl::Status WeightGathers::Unpack(int64_t bucket) {
  NIBBLE_RETURN_IF_ERROR(device_.backend.compute().WaitFor(*arrived_));
  NIBBLE_RETURN_IF_ERROR(device_.ops.elementwise().Run(CopyParts{PlanOf(bucket).unpack}));
  in_memory_[bucket] = true;
  in_slot_[parameters_.buckets()[bucket].weight_slot] = copied_ = bucket;
  arriving_ = -1;
  return absl::OkStatus();
}

absl::Status WeightGathers::Use(int64_t bucket, int64_t next) {
  if (!IsGathered(bucket)) {
    if (arriving_ != bucket) NIBBLE_RETURN_IF_ERROR(Begin(bucket, Beside::kNothing));
    NIBBLE_RETURN_IF_ERROR(Unpack(bucket));
  }
  if (next < 0 || next == arriving_ || IsGathered(next)) return absl::OkStatus();
  return Begin(next, Beside::kComputation);
}

absl::Status WeightGathers::BeforeForward(int64_t part, bool then_backward) {
  const int64_t bucket = bucket_of_part_[part + 1];
  if (bucket != bucket_of_part_.back()) return Use(bucket, bucket + 1);
  if (!parameters_.weights_take_turns()) return Use(bucket, -1);
  const int64_t of_last_block = *(bucket_of_part_.end() - 2);
  return Use(bucket, then_backward ? of_last_block : -1);
}

absl::Status WeightGathers::BeforeBackward(int64_t part) {
  // A backward pass finds them in memory, unless they take turns.
  if (part < 0 || !parameters_.weights_take_turns()) return absl::OkStatus();
  const int64_t bucket = bucket_of_part_[part + 1];
  const int64_t first = bucket_of_part_[1];
  return Use(bucket, bucket == first ? -1 : bucket - 1);
}

}  // namespace nibble
