// Messages as received, and statuses as sent.
//
// A handler takes Received<Request> in place of Request, or AnyReceived in place of a request of
// any type, because gRPC answers bytes that it cannot parse with a status that names nothing.
// Refused with INVALID_ARGUMENT, naming the field: a string that is not UTF-8 or has characters
// that nobody sees, such as marks of direction (HasUnseen), an enum value that the contract does
// not have (in a list also UNSPECIFIED, which selects nothing), and an unknown field inside a
// message of a change, because ignoring it would change the request. Other unknown fields are
// dropped, so that newer callers work. A worker's report is not refused for anything that a newer
// daemon added: unknown fields are dropped at every depth, a field with an unknown enum value
// counts as unset, and what nobody sees becomes a blank.
//
// Statuses keep the coordinator's codes, whose numbers are gRPC's, and carry details for programs
// (google.rpc.Status in grpc-status-details-bin):
//   BadRequest  with INVALID_ARGUMENT: the fields, by their paths
//   ErrorInfo   always: a reason, the domain "nibble.v1", and the field where one is named
//   RetryInfo   with UNAVAILABLE, and wherever RetryAfter was called: when to repeat the call
// The fields are taken from the message, which begins with "FIELD: …" if it is about a field, or,
// for job specs, has one line "line 3: FIELD: …" for each.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_SERVICE_WIRE_H_
#define NIBBLE_SERVER_SERVICE_WIRE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"

namespace nibble {

template <class Message>
struct Received {
  Message message;
  absl::Status status;  // if InvalidArgument, naming the field, `message` must not be used
};

// A request and a response of a type that the message's allocator chose. gRPC's handler, which
// takes the compiler long, is the same for all calls then.
struct AnyReceived {
  google::protobuf::Message* message = nullptr;
  absl::Status status;  // as of Received
};
struct AnyResponse {
  google::protobuf::Message* message = nullptr;
};

// Checks a parsed message and drops unknown fields. A message with a request id is a change, a
// ConnectRequest a report.
absl::Status CheckReceived(google::protobuf::Message& message);

// Parses and checks; an error of the returned status names the field.
absl::Status Receive(grpc::ByteBuffer& buffer, google::protobuf::Message& message);

}  // namespace nibble

namespace grpc {

template <class Message>
class SerializationTraits<nibble::Received<Message>> {
 public:
  static Status Deserialize(ByteBuffer* buffer, nibble::Received<Message>* received) {
    received->status = nibble::Receive(*buffer, received->message);
    return Status::OK;
  }
};

template <>
class SerializationTraits<nibble::AnyReceived> {
 public:
  static Status Deserialize(ByteBuffer* buffer, nibble::AnyReceived* received) {
    received->status = nibble::Receive(*buffer, *received->message);
    return Status::OK;
  }
};

template <>
class SerializationTraits<nibble::AnyResponse> {
 public:
  static Status Serialize(const nibble::AnyResponse& response, ByteBuffer* buffer, bool* own) {
    return GenericSerialize<ProtoBufferWriter, google::protobuf::Message>(*response.message, buffer,
                                                                          own);
  }
};

}  // namespace grpc

namespace nibble {

inline constexpr char kErrorDomain[] = "nibble.v1";

// Messages longer than a header can carry are truncated; details that do not fit are omitted.
grpc::Status ToGrpc(const absl::Status& status);

// `status` with the time after which the same call may succeed.
absl::Status RetryAfter(absl::Status status, int64_t retry_ms);

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_WIRE_H_
