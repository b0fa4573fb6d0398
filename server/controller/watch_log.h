// What happened of late, for all who watch: one list that they share, each at a place of its own.
// Its bounds are the bounds of what slow readers can cost together; who is further behind than it
// goes back has lost his place.
//
// Ownership: entries are shared with those who read them. Thread-safety: all methods; none takes
// longer for more readers.
#ifndef NIBBLE_SERVER_CONTROLLER_WATCH_LOG_H_
#define NIBBLE_SERVER_CONTROLLER_WATCH_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/nibble/v1/common.pb.h"
#include "proto/nibble/v1/job_requests.pb.h"

namespace nibble {

// What a resume token says: everything up to this update of this store is told. Another store, or
// the same one after a restore, has other updates of the same numbers.
struct ResumePlace {
  std::string store;  // see StoreMark
  int64_t sequence = 0;
};
// "27c49345.2." of an id that begins so, in its second epoch; empty: it has no id yet.
std::string StoreMark(const v1::StoreIdentity& store);
// "27c49345.2.s41".
std::string ResumeToken(absl::string_view store_mark, int64_t sequence);
// InvalidArgument where it is none.
absl::StatusOr<ResumePlace> ParseResumeToken(absl::string_view token);

class WatchLog {
 public:
  struct Entry {
    std::string job;
    v1::WatchJobsResponse message;
    int64_t sequence = 0;  // of the update that it tells of; of a sample, of the newest by then
  };
  using Entries = std::vector<std::shared_ptr<const Entry>>;

  // Entries and their bytes that are kept.
  WatchLog(size_t messages, size_t bytes) : max_messages_(messages), max_bytes_(bytes) {}

  // Whose tokens messages have from here on.
  void SetStore(const v1::StoreIdentity& store);
  // What an update brings, in order; nothing where nobody watches. Its last message has its token,
  // those before it that of the update before. Updates come in their order.
  void Append(int64_t sequence, std::vector<Entry> news);
  // What is no part of an update.
  void AppendSamples(std::vector<Entry> samples);
  // Nobody watches: what it keeps is freed by whoever takes it.
  using Kept = std::deque<std::shared_ptr<const Entry>>;
  Kept TakeAll();

  // Where the next entry will be.
  int64_t end() const;
  // Entries from a place on, at most so many. ResourceExhausted: some of them are no longer kept.
  absl::StatusOr<Entries> From(int64_t place, size_t most) const;

 private:
  // With mutex_ held; what falls out at the front goes to `dropped`.
  void Push(Entry entry, int64_t token, std::vector<std::shared_ptr<const Entry>>& dropped);

  const size_t max_messages_;
  const size_t max_bytes_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  Kept entries_;
  std::deque<size_t> sizes_;  // of the entries, bytes
  int64_t first_ = 0;         // place of the first entry
  size_t bytes_ = 0;
  int64_t published_ = 0;  // newest update of which everything is here
  std::string store_mark_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_WATCH_LOG_H_
