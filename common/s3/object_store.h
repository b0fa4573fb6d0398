// Objects of an S3-compatible store: whole objects and files, in parts where they are large.
//
// Every request is signed (signature.h) and sent by path ("endpoint/bucket/key"), which MinIO, Ceph
// and AWS accept. A request that fails in transit, or is answered with 408, 429 or 5xx, is repeated
// with a growing pause; every other answer is final.
//
// Ownership: values. Thread-safety: none; give each thread its own client.
#ifndef NIBBLE_COMMON_S3_OBJECT_STORE_H_
#define NIBBLE_COMMON_S3_OBJECT_STORE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/backoff.h"
#include "common/files/files.h"
#include "common/s3/signature.h"

namespace httplib {
class Client;
}  // namespace httplib

namespace nibble::s3 {

struct Options {
  std::string endpoint;  // "https://host" or "http://host:port"
  std::string region = "us-east-1";
  Credentials credentials;
  std::string ca_file;                     // PEM; empty: the system's authorities
  int64_t part_bytes = int64_t{16} << 20;  // of uploads and downloads; S3 demands 5 MiB or more
  int tries = 6;                           // of each request
  Backoff::Options backoff = {.first = std::chrono::milliseconds(200)};
  std::chrono::seconds limit{60};  // without a byte sent or received
  // Waits between tries; null: sleeps.
  std::function<void(std::chrono::milliseconds)> wait;
  // Whether to give up: asked before each request. Null: never.
  std::function<bool()> cancelled;
  DiskFaults* faults = nullptr;  // for tests
};

// From the variables that AWS's programs use: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY
// (required), AWS_SESSION_TOKEN, AWS_REGION or AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3 or
// AWS_ENDPOINT_URL, and AWS_CA_BUNDLE. InvalidArgument names a variable that is missing.
absl::StatusOr<Options> OptionsFromEnvironment();

struct Place {
  std::string bucket;
  std::string key;  // or a prefix
};
// "s3://bucket/key". InvalidArgument with the text.
absl::StatusOr<Place> ParsePlace(absl::string_view text);

// What was sent of a file.
struct Sent {
  int64_t bytes = 0;
  std::string sha256;  // in hexadecimal
  std::string etag;    // with which the store has answered; empty: none
};

// An object as the store lists it.
struct Listed {
  std::string key;
  int64_t bytes = -1;  // -1: not said
  std::string etag;    // empty: not said
};

// The size of the parts in which a file is uploaded: `least`, or more where the file would have
// more parts than stores take.
int64_t PartBytes(int64_t file_bytes, int64_t least);

class ObjectStore {
 public:
  // InvalidArgument: the endpoint is not a URL.
  static absl::StatusOr<std::unique_ptr<ObjectStore>> Create(Options options);
  ~ObjectStore();

  // Errors name the object: Cancelled; NotFound; PermissionDenied (403, with the store's reason);
  // Unavailable after the last try; Internal for other answers.
  absl::StatusOr<Sent> Put(const Place& place, absl::string_view content);
  // Reads the file part by part. A file of more than one part is a multipart upload, which is
  // aborted if a part fails or the call is cancelled. Where that fails, too, or the process ends,
  // the store keeps the parts: see AbortUploads. An upload that the store does not know when it is
  // to complete it, because it has and the answer was lost, is made once more.
  absl::StatusOr<Sent> PutFile(const Place& place, const std::string& path);
  // ResourceExhausted if the object has more than `max_bytes`.
  absl::StatusOr<std::string> Get(const Place& place, size_t max_bytes);
  // Writes the object of `bytes` bytes to a new file, durably. Returns the SHA-256 of what was
  // written.
  absl::StatusOr<std::string> GetFile(const Place& place, int64_t bytes, const std::string& path);
  absl::Status Delete(const Place& place);
  // All objects whose keys begin with `prefix.key`, in the store's order.
  absl::StatusOr<std::vector<Listed>> List(const Place& prefix);
  // Aborts every multipart upload below PREFIX/, whoever began it, so that its parts are removed.
  // FailedPrecondition if the store lists the same ones again and again.
  absl::Status AbortUploads(const Place& prefix);

  DiskFaults* faults() const { return options_.faults; }

 private:
  enum class Effort : char {
    kFull,
    kOnce,  // one try, even if cancelled: for requests that clean up
  };
  struct Answer {
    int code = 0;
    std::string body;
    std::string etag;
  };
  explicit ObjectStore(Options options);
  // `place` in messages. The answer has a code below 300.
  absl::StatusOr<Answer> Send(const std::string& method, const Place& place,
                              const std::map<std::string, std::string>& query,
                              const std::map<std::string, std::string>& headers,
                              absl::string_view body, Effort effort = Effort::kFull);
  // Uploads `sent.bytes` bytes and sets their hash. Returns the list of parts for Complete.
  absl::StatusOr<std::string> PutParts(const Place& place, const std::string& upload, int fd,
                                       const std::string& path, Sent& sent);
  // Returns the object's ETag.
  absl::StatusOr<std::string> Complete(const Place& place, const std::string& upload,
                                       const std::string& parts);

  const Options options_;
  std::string host_;  // host:port, as in the header
  std::unique_ptr<httplib::Client> client_;
};

}  // namespace nibble::s3

#endif  // NIBBLE_COMMON_S3_OBJECT_STORE_H_
