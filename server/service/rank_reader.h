// One rank's lines, from its worker's daemon: a call of nibble.v1.RankLogs that hands over each
// response and reads the next one only when it is told to.
//
// Ownership: deletes itself when its call is over. Thread-safety: Next and Cancel from any thread,
// until `done` was called; the callbacks run in threads of gRPC, one at a time.
#ifndef NIBBLE_SERVER_SERVICE_RANK_READER_H_
#define NIBBLE_SERVER_SERVICE_RANK_READER_H_

#include <functional>
#include <memory>
#include <utility>

#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "proto/nibble/v1/rank_log.grpc.pb.h"

namespace nibble {

class RankReader : private grpc::ClientReadReactor<v1::ReadRankLogResponse> {
 public:
  // response() holds what came; the next comes after Next.
  using Came = std::function<void()>;
  using Done = std::function<void(const grpc::Status&)>;

  RankReader(const std::shared_ptr<grpc::Channel>& channel, v1::ReadRankLogRequest request,
             Came came, Done done)
      : stub_(v1::RankLogs::NewStub(channel)),
        request_(std::move(request)),
        came_(std::move(came)),
        done_(std::move(done)) {}

  void Start() {
    stub_->async()->ReadRankLog(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }
  v1::ReadRankLogResponse& response() { return response_; }
  void Next() {
    response_.Clear();
    StartRead(&response_);
  }
  void Cancel() { context_.TryCancel(); }

 private:
  ~RankReader() override = default;
  void OnReadDone(bool ok) override {
    if (ok) came_();
  }
  void OnDone(const grpc::Status& status) override {
    done_(status);
    delete this;
  }

  const std::unique_ptr<v1::RankLogs::Stub> stub_;
  const v1::ReadRankLogRequest request_;
  const Came came_;
  const Done done_;
  grpc::ClientContext context_;
  v1::ReadRankLogResponse response_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_RANK_READER_H_
