#include "server/service/grpc_status.h"

#include <cstdint>

#include "server/state/bounds.h"

namespace nibble {
namespace {

// Servers and clients refuse more than 8 KiB of headers, and percent-encoding may triple a text.
constexpr int64_t kMaxMessageBytes = 2000;

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.raw_code()),
          Clip(status.message(), kMaxMessageBytes)};
}

}  // namespace nibble
