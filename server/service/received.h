// A message as it was received, and what is wrong with it: gRPC itself answers bytes that it cannot
// read with a status that names nothing.
//
// Refused with INVALID_ARGUMENT, naming the field: a text that is not UTF-8, an enum value that the
// contract has not (in a list also UNSPECIFIED, which selects nothing), and a field that is not
// known inside a message that a change carries, because it is a condition of what is to be done.
// Other fields that are not known are dropped, as protobuf promises newer callers.
//
// A handler takes Received<Request> in place of Request; grpc_status.h answers for `status`.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_SERVICE_RECEIVED_H_
#define NIBBLE_SERVER_SERVICE_RECEIVED_H_

#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace nibble {

template <class Message>
struct Received {
  Message message;
  absl::Status status;  // InvalidArgument naming the field; then the message is not to be used
};

// Checks a message that was read, and drops what is not known. A change is what has a request id.
absl::Status CheckReceived(google::protobuf::Message& message);

// Why bytes are not a message of the type.
absl::Status WhyUnreadable(const google::protobuf::Descriptor& type,
                           const std::vector<grpc::Slice>& bytes);

// Quiet: what is wrong is the caller's to be told, not the log's.
bool ParseQuietly(grpc::ByteBuffer& buffer, google::protobuf::Message& message);

}  // namespace nibble

namespace grpc {

template <class Message>
class SerializationTraits<nibble::Received<Message>> {
 public:
  static Status Deserialize(ByteBuffer* buffer, nibble::Received<Message>* received) {
    std::vector<Slice> bytes;  // shared with the buffer, which parsing empties
    const Status dumped = buffer->Dump(&bytes);
    if (!dumped.ok()) return dumped;
    received->status = nibble::ParseQuietly(*buffer, received->message)
                           ? nibble::CheckReceived(received->message)
                           : nibble::WhyUnreadable(*Message::descriptor(), bytes);
    return Status::OK;
  }
};

}  // namespace grpc

#endif  // NIBBLE_SERVER_SERVICE_RECEIVED_H_
