#include "worker/agent/shard_service.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/crc32c.h"
#include "proto/nibble/v1/shard_store.grpc.pb.h"
#include "worker/agent/peer_server.h"
#include "worker/agent/shard_report.h"
#include "worker/checkpoint/manifest_codec.h"
#include "worker/checkpoint/shard_reader.h"

namespace nibble {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;

uint32_t CrcOf(const std::string& bytes) {
  return Crc32c({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
}

class ShardService final : public v1::ShardStore::Service {
 public:
  ShardService(const CheckpointDesk& desk, std::string worker)
      : desk_(desk), worker_(std::move(worker)) {}

  grpc::Status DescribeShard(grpc::ServerContext* context, const v1::DescribeShardRequest* request,
                             v1::DescribeShardResponse* response) override {
    SayWho(*context);
    const auto shard = Open(request->shard());
    if (!shard.ok()) return ToGrpc(shard.status());
    const auto header = desk_.HeaderOf(request->shard().checkpoint());
    if (!header.ok()) return ToGrpc(header.status());
    response->set_manifest(ShardManifestBytes((*shard)->manifest()));
    response->set_manifest_crc32c(CrcOf(response->manifest()));
    response->set_bytes((*shard)->manifest().bytes());
    response->set_header(EncodeHeader(*header));
    response->set_header_crc32c(CrcOf(response->header()));
    return grpc::Status::OK;
  }

  grpc::Status ReadShard(grpc::ServerContext* context, const v1::ReadShardRequest* request,
                         grpc::ServerWriter<v1::ReadShardResponse>* writer) override {
    SayWho(*context);
    const auto shard = Open(request->shard());
    if (!shard.ok()) return ToGrpc(shard.status());
    const int64_t all = (*shard)->manifest().bytes();
    const int64_t from = request->offset_bytes();
    const int64_t length = request->length_bytes();
    if (from < 0 || from > all || length < 0 || length > all - from) {
      return ToGrpc(absl::InvalidArgumentError(absl::StrCat(
          "offset_bytes ", from, " and length_bytes ", length, " are outside ", all, " bytes")));
    }
    return ToGrpc(Send(**shard, from, length == 0 ? all : from + length, *writer));
  }

 private:
  void SayWho(grpc::ServerContext& context) const {
    if (!worker_.empty()) context.AddInitialMetadata(kShardHolderKey, worker_);
  }

  // What is not held is not served, even where its files are still there.
  absl::StatusOr<std::unique_ptr<ShardReader>> Open(const v1::ShardRef& ref) const {
    const auto held = desk_.CrcOf(ref.checkpoint(), ref.rank());
    if (!held.ok()) return held.status();
    return desk_.OpenShard(ref.checkpoint(), ref.rank());
  }

  static absl::Status Send(const ShardReader& shard, int64_t from, int64_t until,
                           grpc::ServerWriter<v1::ReadShardResponse>& writer) {
    for (int64_t at = from; at < until;) {
      const int64_t next = std::min(until, at + kPieceBytes);
      std::string bytes(static_cast<size_t>(next - at), '\0');
      const absl::Status read =
          shard.Read(at, absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size()));
      if (!read.ok()) return read;
      v1::ReadShardResponse piece;
      piece.set_offset_bytes(at);
      piece.set_crc32c(CrcOf(bytes));
      piece.set_data(std::move(bytes));
      if (!writer.Write(piece)) return absl::CancelledError("the reader is gone");
      at = next;
    }
    return absl::OkStatus();
  }

  const CheckpointDesk& desk_;
  const std::string worker_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeShardService(const CheckpointDesk& desk, std::string worker) {
  return std::make_unique<ShardService>(desk, std::move(worker));
}

}  // namespace nibble
