#include "worker/infer/decoder.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cpu/layers/blocks.h"
#include "kernels/formats/bfloat16.h"
#include "worker/infer/loaded_weights.h"

namespace nibble {
namespace {

constexpr int64_t kMostSequence = int64_t{1} << 24;
constexpr int64_t kMostPassTokens = int64_t{1} << 16;
// Number of logits in memory at once.
constexpr int64_t kLogitBytes = int64_t{64} << 20;

absl::Status CheckOption(const char* name, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", value, " is not in [1, ", most, "]"));
}

float Value(float x) { return x; }
float Value(uint16_t x) { return DecodeBf16(x); }
void Round(float x, float& to) { to = x; }
void Round(float x, uint16_t& to) { to = EncodeBf16(x); }

template <class T>
void EmbedRow(const ConstMatrix& table, int64_t token, const ConstMatrix& positions,
              int64_t position, void* to) {
  const T* row = static_cast<const T*>(table.data) + token * table.stride;
  T* out = static_cast<T*>(to);
  if (positions.data == nullptr) {
    std::memcpy(out, row, static_cast<size_t>(table.cols) * sizeof(T));
    return;
  }
  const T* at = static_cast<const T*>(positions.data) + position * positions.stride;
  for (int64_t i = 0; i < table.cols; ++i) Round(Value(row[i]) + Value(at[i]), out[i]);
}

}  // namespace

Decoder::Decoder(std::unique_ptr<DecodeDevice> device, LoadedWeights weights,
                 const DecoderOptions& options)
    : device_(std::move(device)),
      weights_(std::move(weights)),
      options_(options),
      scratch_(device_->memory) {}

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(WeightSource& source,
                                                         const DecoderOptions& options) {
  absl::Status status = CheckOption("max_sequence", options.max_sequence, kMostSequence);
  if (status.ok()) status = CheckOption("pass_tokens", options.pass_tokens, kMostPassTokens);
  if (!status.ok()) return status;
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<DecodeDevice> device,
                          DecodeDevice::Create(options.threads));
  absl::StatusOr<LoadedWeights> weights = LoadedWeights::Load(source, options.precision, *device);
  if (!weights.ok()) {
    return absl::Status(weights.status().code(),
                        absl::StrCat(source.description(), ": ", weights.status().message()));
  }
  std::unique_ptr<Decoder> decoder(new Decoder(std::move(device), *std::move(weights), options));
  status = decoder->Build();
  if (!status.ok()) return status;
  return decoder;
}

absl::StatusOr<NormParams> Decoder::FindNorm(const std::string& prefix) const {
  const ModelSpec& spec = outline().spec;
  NormParams norm = {.centered = spec.norm == NormKind::kLayerNorm,
                     .eps = static_cast<float>(spec.norm_eps)};
  absl::StatusOr<const float*> vector = weights_.FindVector(absl::StrCat(prefix, ".weight"));
  if (!vector.ok()) return vector.status();
  norm.weight = *vector;
  if (!norm.centered) return norm;
  vector = weights_.FindVector(absl::StrCat(prefix, ".bias"));
  if (!vector.ok()) return vector.status();
  norm.bias = *vector;
  return norm;
}

absl::Status Decoder::Build() {
  const ModelSpec& spec = outline().spec;
  absl::StatusOr<ConstMatrix> table = weights_.FindMatrix("embedding.weight");
  if (!table.ok()) return table.status();
  embedding_ = head_ = *table;
  if (spec.positions == Positions::kLearned) {
    table = weights_.FindMatrix("positions.weight");
    if (!table.ok()) return table.status();
    positions_ = *table;
  }
  if (!spec.tied_head) {
    table = weights_.FindMatrix("head.weight");
    if (!table.ok()) return table.status();
    head_ = *table;
  }
  absl::StatusOr<NormParams> norm = FindNorm("final_norm");
  if (!norm.ok()) return norm.status();
  final_norm_ = *norm;

  for (int64_t i = 0; i < spec.blocks(); ++i) {
    norm = FindNorm(absl::StrCat("blocks.", i, ".norm"));
    if (!norm.ok()) return norm.status();
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<DecodeMixer> mixer,
                            MakeDecodeMixer(*device_, weights_, i));
    blocks_.push_back({*norm, std::move(mixer)});
  }

  absl::Status status = Plan();
  if (status.ok()) status = scratch_.Commit();
  if (status.ok()) status = Plan();
  if (!status.ok()) return status;

  HostMemory& memory = device_->memory;
  const DType dtype = options_.precision;
  const int64_t rows = options_.pass_tokens;
  logit_rows_ = std::clamp<int64_t>(kLogitBytes / (4 * spec.vocab), 1, rows);
  tokens_.resize(static_cast<size_t>(rows));
  status = stream_.Allocate(memory, dtype, rows, spec.d_model);
  if (status.ok()) status = normed_.Allocate(memory, dtype, rows, spec.d_model);
  if (status.ok()) status = mixed_.Allocate(memory, dtype, rows, spec.d_model);
  if (status.ok()) status = AllocateFloats(memory, rows, mean_);
  if (status.ok()) status = AllocateFloats(memory, rows, rstd_);
  if (status.ok()) status = asked_.Allocate(memory, dtype, logit_rows_, spec.d_model);
  if (status.ok()) status = logits_.Allocate(memory, DType::kF32, logit_rows_, spec.vocab);
  return status;
}

absl::Status Decoder::Plan() {
  for (Block& block : blocks_) {
    scratch_.Rewind();
    NIBBLE_RETURN_IF_ERROR(block.mixer->Allocate(options_.pass_tokens, scratch_));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SequenceState>> Decoder::NewSequence(int64_t capacity) {
  absl::Status status = CheckOption("capacity", capacity, options_.max_sequence);
  if (!status.ok()) return status;
  std::vector<std::unique_ptr<LayerState>> layers;
  for (const Block& block : blocks_) {
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<LayerState> state, block.mixer->NewState(capacity));
    layers.push_back(std::move(state));
  }
  return std::make_unique<SequenceState>(this, capacity, std::move(layers));
}

absl::Status Decoder::CheckLength(int64_t tokens) const {
  const auto refuse = [&](const char* bound, int64_t value) {
    return absl::OutOfRangeError(
        absl::StrCat("a sequence of ", tokens, " tokens is over ", bound, ", ", value));
  };
  if (positions_.data != nullptr && tokens > positions_.rows) {
    return refuse("the model's learned positions", positions_.rows);
  }
  if (tokens > options_.max_sequence) return refuse("max_sequence", options_.max_sequence);
  return absl::OkStatus();
}

absl::Status Decoder::CopySequence(const SequenceState& from, SequenceState& to) const {
  if (from.owner() != this || to.owner() != this) {
    return absl::InvalidArgumentError("copying a sequence that is not one of this decoder");
  }
  if (from.length() > to.capacity()) {
    return absl::OutOfRangeError(absl::StrCat("copying a sequence of ", from.length(),
                                              " tokens to one whose capacity is ", to.capacity()));
  }
  if (&from != &to) to.CopyFrom(from);
  return absl::OkStatus();
}

absl::Status Decoder::Check(absl::Span<const Piece> pieces) const {
  std::unordered_set<const SequenceState*> seen;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (piece.sequence == nullptr || piece.sequence->owner() != this) {
      return absl::InvalidArgumentError(
          absl::StrCat("piece ", i, ": its sequence is not one of this decoder"));
    }
    if (!seen.insert(piece.sequence).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("piece ", i, ": its sequence stands in an earlier piece too"));
    }
    const int64_t length = piece.sequence->length(),
                  more = static_cast<int64_t>(piece.tokens.size());
    const auto too_long = [&](const char* bound, int64_t value) {
      return absl::OutOfRangeError(absl::StrCat("sequence of ", length, " tokens and ", more,
                                                " more: over its ", bound, ", ", value));
    };
    if (length + more > piece.sequence->capacity()) {
      return too_long("capacity", piece.sequence->capacity());
    }
    if (positions_.data != nullptr && length + more > positions_.rows) {
      return too_long("model's learned positions", positions_.rows);
    }
    for (size_t t = 0; t < piece.tokens.size(); ++t) {
      if (piece.tokens[t] >= 0 && piece.tokens[t] < vocab()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("token ", piece.tokens[t], " at position ", length + static_cast<int64_t>(t),
                       " is outside the vocabulary [0, ", vocab(), ")"));
    }
  }
  return absl::OkStatus();
}

void Decoder::Embed(absl::Span<const RowPiece> pieces, int64_t rows) {
  // The position of each row, for any order of the tasks.
  std::vector<int64_t> position(static_cast<size_t>(rows));
  for (const RowPiece& piece : pieces) {
    for (int64_t r = 0; r < piece.rows; ++r) {
      position[static_cast<size_t>(piece.row + r)] = piece.position + r;
    }
  }
  constexpr int64_t kTaskElements = 1 << 16;
  const cpu::Blocks blocks = cpu::RowBlocks(rows, embedding_.cols, kTaskElements);
  device_->pool.ParallelFor(blocks.count(), [&](int64_t i, int) {
    for (int64_t r = blocks.begin(i); r < blocks.end(i); ++r) {
      void* to = Rows(stream_.mut(), r, 1).data;
      const int32_t token = tokens_[static_cast<size_t>(r)];
      const int64_t at = position[static_cast<size_t>(r)];
      if (options_.precision == DType::kBf16) {
        EmbedRow<uint16_t>(embedding_, token, positions_, at, to);
      } else {
        EmbedRow<float>(embedding_, token, positions_, at, to);
      }
    }
  });
}

// normed = norm(stream), after stream += mixed if `add`.
absl::Status Decoder::Norm(const NormParams& norm, bool add, int64_t rows) {
  const MutableMatrix stream = Rows(stream_.mut(), 0, rows);
  AddNormForward request = {.norm = norm,
                            .x = Const(stream),
                            .out = Rows(normed_.mut(), 0, rows),
                            .mean = mean_.data<float>(),
                            .rstd = rstd_.data<float>()};
  if (add) {
    request.y = Rows(mixed_.view(), 0, rows);
    request.sum = stream;
  }
  return device_->ops.norm().Forward(request);
}

absl::Status Decoder::RunPass(absl::Span<const RowPiece> pieces, int64_t rows) {
  Embed(pieces, rows);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    absl::Status status = Norm(blocks_[i].norm, i > 0, rows);
    if (status.ok()) {
      status = blocks_[i].mixer->Forward(pieces, Rows(normed_.view(), 0, rows),
                                         Rows(mixed_.mut(), 0, rows));
    }
    if (!status.ok()) return status;
  }
  for (const RowPiece& piece : pieces) piece.sequence->Advance(piece.rows);
  return Norm(final_norm_, !blocks_.empty(), rows);
}

absl::Status Decoder::EmitLogits(absl::Span<const int64_t> rows, absl::Span<const Place> places,
                                 LogitsSink sink) {
  const auto count = static_cast<int64_t>(rows.size());
  for (int64_t begin = 0; begin < count; begin += logit_rows_) {
    const int64_t n = std::min(logit_rows_, count - begin);
    for (int64_t i = 0; i < n; ++i) {
      const ConstMatrix from = Rows(normed_.view(), rows[static_cast<size_t>(begin + i)], 1);
      std::memcpy(Rows(asked_.mut(), i, 1).data, from.data,
                  static_cast<size_t>(from.cols * DTypeBytes(from.dtype)));
    }
    const MutableMatrix logits = Rows(logits_.mut(), 0, n);
    absl::Status status = Multiply(*device_, Rows(asked_.view(), 0, n), head_, logits);
    if (status.ok()) {
      status = sink(places.subspan(static_cast<size_t>(begin), static_cast<size_t>(n)),
                    static_cast<float*>(logits.data));
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Decoder::Run(absl::Span<const Piece> pieces, Wanted wanted, LogitsSink sink) {
  NIBBLE_RETURN_IF_ERROR(Check(pieces));
  std::vector<RowPiece> parts;
  std::vector<int64_t> rows;
  std::vector<Place> places;
  int64_t used = 0;
  const auto flush = [&]() -> absl::Status {
    if (used == 0) return absl::OkStatus();
    absl::Status status = RunPass(parts, used);
    if (status.ok()) status = EmitLogits(rows, places, sink);
    parts.clear();
    rows.clear();
    places.clear();
    used = 0;
    return status;
  };
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto total = static_cast<int64_t>(pieces[i].tokens.size());
    for (int64_t done = 0; done < total;) {
      const int64_t n = std::min(total - done, options_.pass_tokens - used);
      parts.push_back({pieces[i].sequence, used, n, pieces[i].sequence->length()});
      for (int64_t t = 0; t < n; ++t) {
        tokens_[static_cast<size_t>(used + t)] = pieces[i].tokens[static_cast<size_t>(done + t)];
        const bool last = done + t == total - 1;
        if (wanted == Wanted::kAll || (wanted == Wanted::kLast && last)) {
          rows.push_back(used + t);
          places.push_back({static_cast<int64_t>(i), done + t});
        }
      }
      used += n;
      done += n;
      if (used < options_.pass_tokens) continue;
      NIBBLE_RETURN_IF_ERROR(flush());
    }
  }
  return flush();
}

absl::Status Decoder::Prefill(SequenceState& sequence, absl::Span<const int32_t> tokens,
                              absl::Span<float> logits) {
  const bool asked = !logits.empty();
  if (asked && (static_cast<int64_t>(logits.size()) != vocab() || tokens.empty())) {
    return absl::InvalidArgumentError(absl::StrCat("room for ", logits.size(), " logits of ",
                                                   tokens.size(), " tokens; the vocabulary is ",
                                                   vocab()));
  }
  const Piece piece = {&sequence, tokens};
  return Run({&piece, 1}, asked ? Wanted::kLast : Wanted::kNone,
             [&](absl::Span<const Place>, float* row) {
               std::copy_n(row, logits.size(), logits.data());
               return absl::OkStatus();
             });
}

absl::Status Decoder::PrefillAll(SequenceState& sequence, absl::Span<const int32_t> tokens,
                                 absl::Span<float> logits) {
  const auto width = static_cast<size_t>(vocab());
  if (logits.size() != tokens.size() * width) {
    return absl::InvalidArgumentError(absl::StrCat("room for ", logits.size(), " logits of ",
                                                   tokens.size(), " tokens; the vocabulary is ",
                                                   vocab()));
  }
  const Piece piece = {&sequence, tokens};
  return Run({&piece, 1}, Wanted::kAll, [&](absl::Span<const Place> places, float* rows) {
    std::copy_n(rows, places.size() * width,
                logits.data() + static_cast<size_t>(places[0].token) * width);
    return absl::OkStatus();
  });
}

absl::Status Decoder::StepAll(absl::Span<SequenceState* const> sequences,
                              absl::Span<const int32_t> tokens, absl::Span<float> logits) {
  const auto width = static_cast<size_t>(vocab());
  if (sequences.size() != tokens.size() || logits.size() != tokens.size() * width) {
    return absl::InvalidArgumentError(
        absl::StrCat(sequences.size(), " sequences, ", tokens.size(), " tokens and room for ",
                     logits.size(), " logits do not go together; the vocabulary is ", vocab()));
  }
  std::vector<Piece> pieces;
  for (size_t i = 0; i < tokens.size(); ++i) pieces.push_back({sequences[i], {&tokens[i], 1}});
  return Run(pieces, Wanted::kLast, [&](absl::Span<const Place> places, float* rows) {
    std::copy_n(rows, places.size() * width,
                logits.data() + static_cast<size_t>(places[0].piece) * width);
    return absl::OkStatus();
  });
}

absl::Status Decoder::Losses(absl::Span<const Piece> pieces,
                             absl::Span<const absl::Span<const int32_t>> targets,
                             absl::Span<const absl::Span<float>> losses) {
  if (targets.size() != pieces.size() || losses.size() != pieces.size()) {
    return absl::InvalidArgumentError(absl::StrCat(pieces.size(), " pieces, ", targets.size(),
                                                   " runs of targets and ", losses.size(),
                                                   " of losses"));
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (targets[i].size() != pieces[i].tokens.size() ||
        losses[i].size() != pieces[i].tokens.size()) {
      return absl::InvalidArgumentError(absl::StrCat("piece ", i, ": ", pieces[i].tokens.size(),
                                                     " tokens, ", targets[i].size(),
                                                     " targets and ", losses[i].size(), " losses"));
    }
    for (const int32_t target : targets[i]) {
      if (target >= -1 && target < vocab()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "piece ", i, ": target ", target, " is outside the vocabulary [0, ", vocab(), ")"));
    }
  }
  std::vector<int32_t> asked;
  std::vector<float> answered;
  return Run(pieces, Wanted::kAll, [&](absl::Span<const Place> places, float* rows) {
    asked.clear();
    answered.resize(places.size());
    for (const Place& place : places) {
      asked.push_back(targets[static_cast<size_t>(place.piece)][static_cast<size_t>(place.token)]);
    }
    absl::Status status = device_->ops.token().Run(
        CrossEntropy{.logits = ConstMatrix::Of(rows, static_cast<int64_t>(places.size()), vocab()),
                     .targets = asked.data(),
                     .loss = answered.data()});
    for (size_t i = 0; i < places.size(); ++i) {
      losses[static_cast<size_t>(places[i].piece)][static_cast<size_t>(places[i].token)] =
          answered[i];
    }
    return status;
  });
}

int64_t Decoder::weight_bytes_per_token() const {
  const auto bytes = [](const ConstMatrix& m) {
    return m.rows * m.cols * int64_t{DTypeBytes(m.dtype)};
  };
  int64_t total = weights_.bytes();
  if (!outline().spec.tied_head) total -= bytes(embedding_);
  if (positions_.data != nullptr) total -= bytes(positions_);
  return total;
}

}  // namespace nibble
