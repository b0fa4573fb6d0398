// Ends a call on the server's side at once with a status, even while a message waits for its
// reader. gRPC's C++ interface has two ways, and neither does that: Finish sends its status after
// the messages that wait, and TryCancel ends the call without a reason.
//
// Thread-safety: any thread, while the call lasts.
#ifndef NIBBLE_COMMON_STALL_CUT_OFF_H_
#define NIBBLE_COMMON_STALL_CUT_OFF_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

struct grpc_call;

namespace nibble {

// The messages that wait are dropped; writes and reads in progress fail. `call`: c_call() of its
// context. `why`: not OK, because a stream that lost a message must not end as if it were complete;
// its payloads are not sent. Without effect if the call has ended.
void CutOff(grpc_call* call, const absl::Status& why);

// `message` as the header grpc-message may have it: clipped, and percent-encoded. gRPC does that
// for statuses that Finish sends, and not for those of CutOff.
std::string HeaderText(absl::string_view message);

}  // namespace nibble

#endif  // NIBBLE_COMMON_STALL_CUT_OFF_H_
