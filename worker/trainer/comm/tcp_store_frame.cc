#include "worker/trainer/comm/tcp_store_frame.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "worker/trainer/comm/rendezvous_store.h"

namespace nibble::tcp_store {
namespace {

constexpr uint32_t kMagic = 0x5652424e;  // "NBRV"
constexpr uint8_t kVersion = 1;

void Put(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

uint64_t Take(std::string_view& in, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) {
    value |= static_cast<uint64_t>(static_cast<unsigned char>(in[i])) << (8 * i);
  }
  in.remove_prefix(bytes);
  return value;
}

absl::Status TakeIntro(std::string_view& in, size_t bytes) {
  if (in.size() != bytes) {
    return absl::InvalidArgumentError(absl::StrCat("head of ", in.size(), " bytes, not ", bytes));
  }
  if (const uint64_t magic = Take(in, 4); magic != kMagic) {
    return absl::InvalidArgumentError(absl::StrCat("magic ", absl::Hex(magic), " is not ours"));
  }
  if (const uint64_t version = Take(in, 1); version != kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("version ", version, ", this program speaks ", kVersion));
  }
  return absl::OkStatus();
}

}  // namespace

std::string EncodeRequest(Operation operation, std::string_view key, std::string_view value,
                          uint64_t wait_ms) {
  std::string out;
  out.reserve(kRequestHead + key.size() + value.size());
  Put(out, kMagic, 4);
  Put(out, kVersion, 1);
  Put(out, static_cast<uint8_t>(operation), 1);
  Put(out, key.size(), 2);
  Put(out, value.size(), 4);
  Put(out, wait_ms, 8);
  out.append(key).append(value);
  return out;
}

std::string EncodeResponse(const absl::Status& status, std::string_view value) {
  const std::string_view body =
      status.ok() ? value : std::string_view(status.message().data(), status.message().size());
  std::string out;
  out.reserve(kResponseHead + body.size());
  Put(out, kMagic, 4);
  Put(out, kVersion, 1);
  Put(out, static_cast<uint8_t>(status.code()), 1);
  Put(out, 0, 2);
  Put(out, body.size(), 4);
  out.append(body);
  return out;
}

absl::StatusOr<RequestHead> ParseRequest(std::string_view head) {
  if (const absl::Status status = TakeIntro(head, kRequestHead); !status.ok()) return status;
  const uint64_t operation = Take(head, 1);
  const uint64_t key_bytes = Take(head, 2);
  const uint64_t value_bytes = Take(head, 4);
  const uint64_t wait_ms = Take(head, 8);
  const bool set = operation == static_cast<uint64_t>(Operation::kSet);
  if (!set && operation != static_cast<uint64_t>(Operation::kGet)) {
    return absl::InvalidArgumentError(absl::StrCat("operation ", operation, " is not known"));
  }
  if (key_bytes == 0 || key_bytes > RendezvousStore::kMaxKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat("key of ", key_bytes, " bytes, not in [1, ",
                                                   RendezvousStore::kMaxKeyBytes, "]"));
  }
  const uint64_t most = set ? RendezvousStore::kMaxValueBytes : 0;
  if (value_bytes > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("value of ", value_bytes, " bytes, above ", most));
  }
  return RequestHead{static_cast<Operation>(operation), key_bytes, value_bytes, wait_ms};
}

absl::StatusOr<ResponseHead> ParseResponse(std::string_view head) {
  if (const absl::Status status = TakeIntro(head, kResponseHead); !status.ok()) return status;
  const uint64_t code = Take(head, 1);
  const uint64_t zero = Take(head, 2);
  const uint64_t value_bytes = Take(head, 4);
  if (code > static_cast<uint64_t>(absl::StatusCode::kUnauthenticated) || zero != 0) {
    return absl::InvalidArgumentError(absl::StrCat("status ", code, " is not known"));
  }
  if (value_bytes > RendezvousStore::kMaxValueBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("value of ", value_bytes, " bytes, above ", RendezvousStore::kMaxValueBytes));
  }
  return ResponseHead{static_cast<absl::StatusCode>(code), value_bytes};
}

absl::StatusOr<HostPort> ParseHostPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (colon == std::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(absl::string_view(text.data() + colon + 1, text.size() - colon - 1),
                        &port) ||
      port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("address ", std::string(text), " is not host:port with a port up to 65535"));
  }
  std::string_view host = text.substr(0, colon);
  const bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (brackets) host = host.substr(1, host.size() - 2);
  if (!brackets && host.find(':') != std::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("address ", std::string(text), " needs brackets around its IPv6 host"));
  }
  return HostPort{std::string(host), static_cast<uint16_t>(port)};
}

}  // namespace nibble::tcp_store
