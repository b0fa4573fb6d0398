#include "client/remote/watch_stream.h"

#include <utility>

namespace nibble {

WatchStream::WatchStream(CoordinatorClient& client, const v1::WatchJobsRequest& request)
    : context_(client.NewContext()), reader_(client.stub().WatchJobs(context_.get(), request)) {
  thread_ = std::thread([this] { Read(); });
}

WatchStream::~WatchStream() {
  context_->TryCancel();
  thread_.join();
}

void WatchStream::Read() {
  v1::WatchJobsResponse message;
  while (reader_->Read(&message)) {
    std::lock_guard lock(mutex_);
    messages_.push_back(std::move(message));
    changed_.notify_all();
  }
  grpc::Status status = reader_->Finish();
  std::lock_guard lock(mutex_);
  end_ = std::move(status);
  changed_.notify_all();
}

std::optional<v1::WatchJobsResponse> WatchStream::Next(absl::Duration wait) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, absl::ToChronoNanoseconds(wait),
                    [this] { return !messages_.empty() || end_; });
  if (messages_.empty()) return std::nullopt;
  v1::WatchJobsResponse message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

std::optional<grpc::Status> WatchStream::End() {
  std::lock_guard lock(mutex_);
  return messages_.empty() ? end_ : std::nullopt;
}

}  // namespace nibble
