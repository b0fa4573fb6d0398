#include "tests/service/generic_call.h"

#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace nibble {
namespace {

std::string Text(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string text;
  if (!buffer.Dump(&slices).ok()) return text;
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return text;
}

}  // namespace

GenericAnswer CallWithBytes(const std::shared_ptr<grpc::Channel>& channel,
                            const std::string& method, const std::vector<std::string>& requests,
                            std::chrono::milliseconds deadline, bool is_stream, size_t most) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + deadline);
  const auto call = stub.PrepareCall(&context, method, &queue);
  // One operation at a time, so that whatever comes next is its end.
  const auto done = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  GenericAnswer answer;
  call->StartCall(nullptr);
  bool open = done();
  for (const std::string& request : requests) {
    if (!open) break;
    const grpc::Slice slice(request);
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    open = done();
  }
  call->WritesDone(nullptr);
  (void)done();
  while (answer.messages.size() < most) {
    grpc::ByteBuffer message;
    call->Read(&message, nullptr);
    if (!done()) break;
    answer.messages.push_back(Text(message));
  }
  if (is_stream && answer.messages.size() == most) context.TryCancel();
  call->Finish(&answer.status, nullptr);
  (void)done();
  queue.Shutdown();
  return answer;
}

}  // namespace nibble
