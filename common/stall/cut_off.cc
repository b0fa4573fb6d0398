#include "common/stall/cut_off.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "grpc/grpc.h"

namespace nibble {
namespace {

// A frame has 16 KiB, and an encoded byte three.
constexpr size_t kMostBytes = 1024;

}  // namespace

std::string HeaderText(absl::string_view message) {
  std::string text;
  for (const char c : message.substr(0, kMostBytes)) {
    if (c >= ' ' && c <= '~' && c != '%') {
      text += c;
    } else {
      absl::StrAppend(&text, "%", absl::Hex(static_cast<uint8_t>(c), absl::kZeroPad2));
    }
  }
  return text;
}

void CutOff(grpc_call* call, const absl::Status& why) {
  const absl::StatusCode code = why.ok() ? absl::StatusCode::kInternal : why.code();
  // Never fails: it is an error only of its last argument, which is reserved.
  (void)grpc_call_cancel_with_status(call, static_cast<grpc_status_code>(code),
                                     HeaderText(why.message()).c_str(), nullptr);
}

}  // namespace nibble
