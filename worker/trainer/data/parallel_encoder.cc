#include "worker/trainer/data/parallel_encoder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {
namespace {

// Memory that a small piece's tokens leave for the next round's.
constexpr size_t kKeptTokens = 1024;

}  // namespace

ParallelEncoder::ParallelEncoder(const Tokenizer& tokenizer, int threads, Name name,
                                 Deliver deliver, size_t round_bytes)
    : tokenizer_(tokenizer),
      pool_(threads),
      name_(std::move(name)),
      deliver_(std::move(deliver)),
      round_bytes_(round_bytes != 0 ? round_bytes
                                    : kRoundBytes * static_cast<size_t>(pool_.threads())) {
  texts_.reserve(round_bytes_);
}

absl::Status ParallelEncoder::Add(std::string_view text) {
  const bool small = text.size() <= round_bytes_;
  // Views of `texts_` stay good as long as it does not grow.
  if (small && text.size() > round_bytes_ - texts_.size()) {
    if (absl::Status status = Flush(); !status.ok()) return status;
  }
  if (small) {
    const size_t begin = texts_.size();
    texts_.append(text);
    text = std::string_view(texts_).substr(begin);
  }
  size_t offset = 0;
  do {
    const std::string_view rest = text.substr(offset);
    const size_t size = rest.empty() ? 0 : tokenizer_.PieceEnd(rest, kEncodePieceBytes);
    pieces_.push_back({.text = rest.substr(0, size),
                       .document = documents_,
                       .offset = static_cast<int64_t>(offset),
                       .ends_document = size == rest.size()});
    offset += size;
    pending_bytes_ += size;
    if (pending_bytes_ >= round_bytes_) {
      if (absl::Status status = Flush(); !status.ok()) return status;
    }
  } while (offset < text.size());
  ++documents_;
  // A large document's pieces are views of what may not outlive this call.
  const bool full = pieces_.size() >= kRoundPieces * static_cast<size_t>(pool_.threads());
  return small && !full ? absl::OkStatus() : Flush();
}

absl::Status ParallelEncoder::Finish() { return Flush(); }

absl::Status ParallelEncoder::Flush() {
  tokens_.resize(std::max(tokens_.size(), pieces_.size()));
  pool_.ParallelFor(static_cast<int64_t>(pieces_.size()), [&](int64_t index, int) {
    Piece& piece = pieces_[index];
    std::vector<int32_t>& tokens = tokens_[index];
    tokens.clear();
    piece.status =
        tokenizer_.EncodePiece(piece.text, piece.offset, [&](absl::Span<const int32_t> more) {
          tokens.insert(tokens.end(), more.begin(), more.end());
          return absl::OkStatus();
        });
  });
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    if (!piece.status.ok()) {
      return absl::Status(piece.status.code(),
                          absl::StrCat(name_(piece.document), ": ", piece.status.message()));
    }
    absl::Status status = deliver_({.document = piece.document,
                                    .offset = piece.offset,
                                    .bytes = static_cast<int64_t>(piece.text.size()),
                                    .ends_document = piece.ends_document,
                                    .tokens = tokens_[i]});
    if (!status.ok()) return status;
    if (tokens_[i].capacity() > kKeptTokens) tokens_[i] = {};
  }
  pieces_.clear();
  texts_.clear();
  pending_bytes_ = 0;
  return absl::OkStatus();
}

}  // namespace nibble
