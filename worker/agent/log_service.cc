#include "worker/agent/log_service.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/nibble/v1/rank_log.grpc.pb.h"
#include "worker/agent/peer_server.h"

namespace nibble {
namespace {

constexpr int64_t kReadBytes = 64 << 10;
constexpr size_t kResponseBytes = 256 << 10;
// Between two looks at whether the reader is still there.
constexpr std::chrono::milliseconds kLook(250);

// Bytes of the sequence that begins with `lead`; 0 where none does.
size_t SequenceBytes(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  if (lead >= 0xf0 && lead < 0xf5) return 4;
  return 0;
}

// What is not UTF-8 becomes '?', byte by byte.
std::string Utf8(std::string text) {
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    const size_t bytes = SequenceBytes(lead);
    bool good = bytes > 0 && at + bytes <= text.size();
    for (size_t i = 1; good && i < bytes; ++i) {
      good = (static_cast<unsigned char>(text[at + i]) & 0xc0) == 0x80;
    }
    if (good && bytes >= 3) {
      const auto second = static_cast<unsigned char>(text[at + 1]);
      const bool overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
      const bool beyond = (lead == 0xed && second >= 0xa0) || (lead == 0xf4 && second >= 0x90);
      good = !overlong && !beyond;
    }
    if (!good) text[at] = '?';
    at += good ? bytes : 1;
  }
  return text;
}

// Where the last `lines` lines begin.
absl::StatusOr<int64_t> TailBegin(const RankLog& log, int32_t lines) {
  int64_t until = log.end();
  int64_t wanted = lines;
  bool last_byte = true;
  while (until > log.begin()) {
    const int64_t from = std::max(log.begin(), until - kReadBytes);
    const absl::StatusOr<RankLog::Piece> piece = log.Read(from, until - from);
    if (!piece.ok()) return piece.status();
    if (piece->offset != from) return piece->offset;  // gone meanwhile
    for (int64_t i = static_cast<int64_t>(piece->bytes.size()) - 1; i >= 0; --i) {
      const bool end_of_line = piece->bytes[static_cast<size_t>(i)] == '\n';
      // The newline at the very end begins no line.
      if (end_of_line && !last_byte && --wanted == 0) return from + i + 1;
      last_byte = false;
    }
    until = from;
  }
  return until;
}

// Cuts a stream of bytes into lines and sends them, some at a time.
class LineSender {
 public:
  explicit LineSender(grpc::ServerWriter<v1::ReadRankLogResponse>& writer) : writer_(writer) {}

  void SetDropped(int64_t bytes) { response_.set_dropped_bytes(bytes); }
  // False where the reader is gone.
  bool Add(absl::string_view bytes) {
    while (!bytes.empty()) {
      const size_t newline = bytes.find('\n');
      const size_t room = kMaxLineBytes - line_.size();
      const size_t take = std::min({newline, bytes.size(), room});
      line_.append(bytes.data(), take);
      bytes.remove_prefix(take);
      const bool ends = !bytes.empty() && bytes[0] == '\n';
      if (ends) bytes.remove_prefix(1);
      if ((ends || line_.size() == kMaxLineBytes) && !EndLine()) return false;
    }
    return true;
  }
  bool EndLine() {
    bytes_ += line_.size() + 1;
    response_.add_lines(Utf8(std::exchange(line_, std::string())));
    return bytes_ < kResponseBytes || Flush();
  }
  bool Flush() {
    if (response_.lines().empty() && response_.dropped_bytes() == 0) return true;
    bytes_ = 0;
    const bool sent = writer_.Write(response_);
    response_.Clear();
    return sent;
  }
  bool has_part() const { return !line_.empty(); }

 private:
  grpc::ServerWriter<v1::ReadRankLogResponse>& writer_;
  v1::ReadRankLogResponse response_;
  std::string line_;  // that has no end yet
  size_t bytes_ = 0;  // in response_
};

absl::Status Send(const RankLog& log, const v1::ReadRankLogRequest& request,
                  const grpc::ServerContext& context,
                  grpc::ServerWriter<v1::ReadRankLogResponse>& writer) {
  LineSender sender(writer);
  int64_t at = 0;
  if (request.tail_lines() > 0) {
    const absl::StatusOr<int64_t> begin = TailBegin(log, request.tail_lines());
    if (!begin.ok()) return begin.status();
    at = *begin;
  } else {
    at = log.begin();
    sender.SetDropped(at);
  }
  const absl::Status gone = absl::CancelledError("the reader is gone");
  while (!context.IsCancelled()) {
    const bool ended = log.ended();
    const absl::StatusOr<RankLog::Piece> piece = log.Read(at, kReadBytes);
    if (!piece.ok()) return piece.status();
    if (piece->offset > at) {
      const std::string skipped =
          absl::StrCat("[", piece->offset - at, " bytes are no longer kept]\n");
      if ((sender.has_part() && !sender.EndLine()) || !sender.Add(skipped)) return gone;
    }
    if (!sender.Add(piece->bytes)) return gone;
    at = piece->offset + static_cast<int64_t>(piece->bytes.size());
    if (!piece->bytes.empty()) continue;
    // All that is there was read.
    if (ended || !request.follow()) {
      if (sender.has_part() && !sender.EndLine()) return gone;
      return sender.Flush() ? absl::OkStatus() : gone;
    }
    if (!sender.Flush()) return gone;
    (void)log.AwaitBeyond(at, kLook);
  }
  return gone;
}

class LogService final : public v1::RankLogs::Service {
 public:
  LogService(FindRankLog find, const LogServiceLimits& limits)
      : find_(std::move(find)), limits_(limits) {}

  grpc::Status ReadRankLog(grpc::ServerContext* context, const v1::ReadRankLogRequest* request,
                           grpc::ServerWriter<v1::ReadRankLogResponse>* writer) override {
    if (request->rank() < 0 || request->attempt() < 1 || request->tail_lines() < 0) {
      return ToGrpc(absl::InvalidArgumentError(
          absl::StrCat("rank ", request->rank(), " is below 0, attempt ", request->attempt(),
                       " below 1, or tail_lines ", request->tail_lines(), " below 0")));
    }
    if (++readers_ > limits_.readers) {
      --readers_;
      return ToGrpc(absl::ResourceExhaustedError(
          absl::StrCat("readers: ", limits_.readers, " read logs of this worker already")));
    }
    const auto log = find_(request->job(), request->attempt(), request->rank());
    const absl::Status sent = log.ok() ? Send(**log, *request, *context, *writer) : log.status();
    --readers_;
    return ToGrpc(sent);
  }

 private:
  const FindRankLog find_;
  const LogServiceLimits limits_;
  std::atomic<int> readers_ = 0;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeLogService(FindRankLog find, const LogServiceLimits& limits) {
  return std::make_unique<LogService>(std::move(find), limits);
}

}  // namespace nibble
