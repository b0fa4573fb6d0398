#include "worker/infer/decoder.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/gemm/gemm.h"

namespace nibble {
namespace {

constexpr int64_t kMostSequence = int64_t{1} << 24;
constexpr int64_t kMostPassTokens = int64_t{1} << 16;
// Bytes of logits in memory at once.
constexpr int64_t kLogitBytes = int64_t{64} << 20;

absl::Status CheckOption(const char* name, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", value, " is not in [1, ", most, "]"));
}

absl::Status CheckOptions(const DecoderOptions& options) {
  NIBBLE_RETURN_IF_ERROR(CheckOption("max_sequence", options.max_sequence, kMostSequence));
  return CheckOption("pass_tokens", options.pass_tokens, kMostPassTokens);
}

}  // namespace

Decoder::Decoder(std::unique_ptr<DecodeDevice> device, LoadedWeights weights,
                 const DecoderOptions& options)
    : device_(std::move(device)),
      weights_(std::move(weights)),
      options_(options),
      scratch_(device_->memory()),
      unused_(device_->memory()) {}

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(WeightSource& source,
                                                         const DecoderOptions& options) {
  NIBBLE_RETURN_IF_ERROR(CheckOptions(options));
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<DecodeDevice> device,
                          DecodeDevice::Create(options.on, options.threads));
  return Create(source, std::move(device), options);
}

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(WeightSource& source,
                                                         std::unique_ptr<DecodeDevice> device,
                                                         const DecoderOptions& options) {
  NIBBLE_RETURN_IF_ERROR(CheckOptions(options));
  absl::StatusOr<LoadedWeights> weights =
      LoadedWeights::Load(source, options.precision, device->device());
  if (!weights.ok()) {
    return absl::Status(weights.status().code(),
                        absl::StrCat(source.description(), ": ", weights.status().message()));
  }
  std::unique_ptr<Decoder> decoder(new Decoder(std::move(device), *std::move(weights), options));
  NIBBLE_RETURN_IF_ERROR(decoder->Build());
  return decoder;
}

absl::Status Decoder::Build() {
  const ModelSpec& spec = outline().spec;
  const auto find = [&](const char* name, ConstMatrix& to) -> absl::Status {
    NIBBLE_ASSIGN_OR_RETURN(const int64_t param, outline().Find(name));
    to = weights_.matrix(param);
    return absl::OkStatus();
  };
  NIBBLE_RETURN_IF_ERROR(find("embedding.weight", embedding_));
  if (spec.positions == Positions::kLearned) {
    NIBBLE_RETURN_IF_ERROR(find("positions.weight", positions_));
  }
  NIBBLE_RETURN_IF_ERROR(find(spec.tied_head ? "embedding.weight" : "head.weight", head_));
  for (int64_t i = 0; i < spec.blocks(); ++i) {
    NIBBLE_ASSIGN_OR_RETURN(const NormLayer norm,
                            FindNorm(weights_, absl::StrCat("blocks.", i, ".norm")));
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Mixer> mixer,
                            MakeMixer(device_->device(), weights_, i, options_.precision));
    blocks_.push_back({norm.params, std::move(mixer)});
  }
  NIBBLE_ASSIGN_OR_RETURN(const NormLayer norm, FindNorm(weights_, "final_norm"));
  final_norm_ = norm.params;

  absl::Status status = Plan();
  if (status.ok()) status = scratch_.Commit();
  if (status.ok()) status = Plan();
  if (!status.ok()) return status;

  Memory& memory = device_->memory();
  const DType dtype = options_.precision;
  const int64_t rows = options_.pass_tokens;
  logit_rows_ = std::clamp<int64_t>(kLogitBytes / (4 * spec.vocab), 1, rows);
  tokens_.resize(static_cast<size_t>(rows));
  NIBBLE_ASSIGN_OR_RETURN(device_tokens_, memory.Allocate(tokens_.size() * sizeof(int32_t)));
  const auto logit_rows = static_cast<size_t>(logit_rows_);
  NIBBLE_ASSIGN_OR_RETURN(targets_, memory.Allocate(logit_rows * sizeof(int32_t)));
  NIBBLE_ASSIGN_OR_RETURN(losses_, memory.Allocate(logit_rows * sizeof(float)));
  status = stream_.Allocate(memory, dtype, rows, spec.d_model);
  if (status.ok()) status = normed_.Allocate(memory, dtype, rows, spec.d_model);
  if (status.ok()) status = mixed_.Allocate(memory, dtype, rows, spec.d_model);
  if (status.ok()) status = AllocateFloats(memory, rows, mean_);
  if (status.ok()) status = AllocateFloats(memory, rows, rstd_);
  if (status.ok()) status = wanted_.Allocate(memory, dtype, logit_rows_, spec.d_model);
  if (status.ok()) status = logits_.Allocate(memory, DType::kF32, logit_rows_, spec.vocab);
  return status;
}

absl::Status Decoder::Plan() {
  // Nothing is saved for a backward pass: all tensors last for one pass of one block.
  const Places places = {.step = unused_,
                         .figures = unused_,
                         .saved = scratch_,
                         .scratch = scratch_,
                         .transient = unused_};
  for (Block& block : blocks_) {
    scratch_.Rewind();
    NIBBLE_RETURN_IF_ERROR(block.mixer->AllocateForward(options_.pass_tokens, places));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SequenceState>> Decoder::NewSequence(int64_t capacity) {
  NIBBLE_RETURN_IF_ERROR(CheckOption("capacity", capacity, options_.max_sequence));
  std::vector<std::unique_ptr<MixerState>> mixers;
  for (const Block& block : blocks_) {
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<MixerState> state, block.mixer->NewState(capacity));
    mixers.push_back(std::move(state));
  }
  return std::make_unique<SequenceState>(this, capacity, std::move(mixers));
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
    return absl::InvalidArgumentError("cannot copy a sequence of another decoder");
  }
  if (from.length() > to.capacity()) {
    return absl::OutOfRangeError(absl::StrCat("copying a sequence of ", from.length(),
                                              " tokens to one whose capacity is ", to.capacity()));
  }
  if (&from == &to) return absl::OkStatus();
  return to.CopyFrom(from, device_->device().backend.compute());
}

absl::Status Decoder::Check(absl::Span<const Piece> pieces) const {
  std::unordered_set<const SequenceState*> seen;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (piece.sequence == nullptr || piece.sequence->owner() != this) {
      return absl::InvalidArgumentError(
          absl::StrCat("piece ", i, ": its sequence belongs to another decoder"));
    }
    if (!seen.insert(piece.sequence).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("piece ", i, ": an earlier piece has the same sequence"));
    }
    const int64_t length = piece.sequence->length(),
                  more = static_cast<int64_t>(piece.tokens.size());
    const auto too_long = [&](const char* bound, int64_t value) {
      return absl::OutOfRangeError(absl::StrCat("a sequence of ", length, " tokens and ", more,
                                                " more exceeds its ", bound, ", ", value));
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
  return device_->device().ops.norm().Forward(request);
}

absl::Status Decoder::RunPass(const Pass& pass) {
  const StepContext context = {.layout = {.continued = pass.pieces}, .sequences = pass.sequences};
  NIBBLE_RETURN_IF_ERROR(device_->memory().CopyIn(
      device_tokens_.data(), tokens_.data(), static_cast<size_t>(pass.rows) * sizeof(int32_t)));
  NIBBLE_RETURN_IF_ERROR(device_->device().ops.token().Forward(
      EmbeddingForward{.layout = context.layout,
                       .tokens = device_tokens_.data<int32_t>(),
                       .table = embedding_,
                       .positions = positions_,
                       .out = stream_.rows(pass.rows)}));
  for (size_t i = 0; i < blocks_.size(); ++i) {
    NIBBLE_RETURN_IF_ERROR(Norm(blocks_[i].norm, i > 0, pass.rows));
    NIBBLE_RETURN_IF_ERROR(
        blocks_[i].mixer->Forward(context, Const(normed_.rows(pass.rows)), mixed_.rows(pass.rows)));
  }
  for (size_t i = 0; i < pass.pieces.size(); ++i) pass.sequences[i]->Advance(pass.pieces[i].rows);
  return Norm(final_norm_, !blocks_.empty(), pass.rows);
}

absl::Status Decoder::EmitLogits(const Pass& pass, DeviceSink sink) {
  const auto count = static_cast<int64_t>(pass.wanted.size());
  for (int64_t begin = 0; begin < count; begin += logit_rows_) {
    const int64_t n = std::min(logit_rows_, count - begin);
    // Neighbouring rows are copied together.
    for (int64_t i = 0; i < n;) {
      const int64_t row = pass.wanted[static_cast<size_t>(begin + i)];
      int64_t run = 1;
      while (i + run < n && pass.wanted[static_cast<size_t>(begin + i + run)] == row + run) ++run;
      const ConstMatrix from = Rows(normed_.view(), row, run);
      const auto bytes = static_cast<size_t>(from.cols * DTypeBytes(from.dtype));
      NIBBLE_RETURN_IF_ERROR(device_->device().backend.compute().Copy(
          {.to = Rows(wanted_.mut(), i, run).data,
           .from = from.data,
           .line_bytes = bytes * static_cast<size_t>(run)}));
      i += run;
    }
    const MutableMatrix logits = logits_.rows(n);
    NIBBLE_RETURN_IF_ERROR(
        device_->device().gemm.Gemm(Fprop(Const(wanted_.rows(n)), head_, logits)));
    NIBBLE_RETURN_IF_ERROR(sink(absl::MakeConstSpan(pass.places)
                                    .subspan(static_cast<size_t>(begin), static_cast<size_t>(n)),
                                logits));
  }
  return absl::OkStatus();
}

absl::Status Decoder::Run(absl::Span<const Piece> pieces, Wanted wanted, LogitsSink sink) {
  return RunOnDevice(
      pieces, wanted,
      [&](absl::Span<const Place> places, const MutableMatrix& logits) -> absl::Status {
        host_logits_.resize(static_cast<size_t>(logits.rows * logits.cols));
        NIBBLE_RETURN_IF_ERROR(device_->memory().CopyOut(host_logits_.data(), logits.data,
                                                         host_logits_.size() * sizeof(float)));
        return sink(places, host_logits_.data());
      });
}

absl::Status Decoder::RunOnDevice(absl::Span<const Piece> pieces, Wanted wanted, DeviceSink sink) {
  NIBBLE_RETURN_IF_ERROR(Check(pieces));
  Pass pass;
  const auto run = [&]() -> absl::Status {
    if (pass.rows == 0) return absl::OkStatus();
    NIBBLE_RETURN_IF_ERROR(RunPass(pass));
    NIBBLE_RETURN_IF_ERROR(EmitLogits(pass, sink));
    pass = {};
    return absl::OkStatus();
  };
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto total = static_cast<int64_t>(pieces[i].tokens.size());
    for (int64_t done = 0; done < total;) {
      const int64_t n = std::min(total - done, options_.pass_tokens - pass.rows);
      pass.pieces.push_back(
          {.row = pass.rows, .rows = n, .position = pieces[i].sequence->length()});
      pass.sequences.push_back(pieces[i].sequence);
      for (int64_t t = 0; t < n; ++t) {
        const int64_t row = pass.rows + t;
        tokens_[static_cast<size_t>(row)] = pieces[i].tokens[static_cast<size_t>(done + t)];
        const bool last = done + t == total - 1;
        if (wanted == Wanted::kAll || (wanted == Wanted::kLast && last)) {
          pass.wanted.push_back(row);
          pass.places.push_back({static_cast<int64_t>(i), done + t});
        }
      }
      pass.rows += n;
      done += n;
      if (pass.rows == options_.pass_tokens) NIBBLE_RETURN_IF_ERROR(run());
    }
  }
  return run();
}

absl::Status Decoder::Prefill(SequenceState& sequence, absl::Span<const int32_t> tokens,
                              absl::Span<float> logits) {
  const bool wanted = !logits.empty();
  if (wanted && (static_cast<int64_t>(logits.size()) != vocab() || tokens.empty())) {
    return absl::InvalidArgumentError(absl::StrCat("a buffer of ", logits.size(), " logits for ",
                                                   tokens.size(), " tokens; a token has ", vocab(),
                                                   " logits"));
  }
  const Piece piece = {&sequence, tokens};
  return Run({&piece, 1}, wanted ? Wanted::kLast : Wanted::kNone,
             [&](absl::Span<const Place>, float* row) {
               std::copy_n(row, logits.size(), logits.data());
               return absl::OkStatus();
             });
}

absl::Status Decoder::Losses(absl::Span<const Piece> pieces,
                             absl::Span<const absl::Span<const int32_t>> targets,
                             absl::Span<const absl::Span<float>> losses) {
  if (targets.size() != pieces.size() || losses.size() != pieces.size()) {
    return absl::InvalidArgumentError(absl::StrCat(pieces.size(), " pieces, ", targets.size(),
                                                   " spans of targets and ", losses.size(),
                                                   " of losses; each piece needs one of both"));
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (targets[i].size() != pieces[i].tokens.size() ||
        losses[i].size() != pieces[i].tokens.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("piece ", i, ": ", pieces[i].tokens.size(), " tokens, ", targets[i].size(),
                       " targets and ", losses[i].size(), " losses; the numbers must be equal"));
    }
    for (const int32_t target : targets[i]) {
      if (target >= -1 && target < vocab()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "piece ", i, ": target ", target, " is outside the vocabulary [0, ", vocab(), ")"));
    }
  }
  std::vector<int32_t> batch;
  std::vector<float> batch_losses;
  Memory& memory = device_->memory();
  const auto take = [&](absl::Span<const Place> places,
                        const MutableMatrix& logits) -> absl::Status {
    batch.clear();
    batch_losses.resize(places.size());
    for (const Place& place : places) {
      batch.push_back(targets[static_cast<size_t>(place.piece)][static_cast<size_t>(place.token)]);
    }
    NIBBLE_RETURN_IF_ERROR(
        memory.CopyIn(targets_.data(), batch.data(), batch.size() * sizeof(int32_t)));
    NIBBLE_RETURN_IF_ERROR(
        device_->device().ops.token().Run(CrossEntropy{.logits = Const(logits),
                                                       .targets = targets_.data<int32_t>(),
                                                       .loss = losses_.data<float>()}));
    NIBBLE_RETURN_IF_ERROR(
        memory.CopyOut(batch_losses.data(), losses_.data(), batch_losses.size() * sizeof(float)));
    for (size_t i = 0; i < places.size(); ++i) {
      losses[static_cast<size_t>(places[i].piece)][static_cast<size_t>(places[i].token)] =
          batch_losses[i];
    }
    return absl::OkStatus();
  };
  return RunOnDevice(pieces, Wanted::kAll, take);
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
