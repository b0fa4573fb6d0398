#include "common/s3/object_store.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "common/descriptor.h"
#include "common/errno_error.h"
#include "common/files/files.h"
#include "common/status_macros.h"
#include "httplib.h"

namespace nibble::s3 {
namespace {

constexpr int64_t kMostParts = 10'000;  // S3's own bound
constexpr int kMostPages = 10;          // of uploads to abort
constexpr int kCompleteTries = 2;       // of a multipart upload

std::string Variable(const char* name, const char* other = nullptr) {
  const char* value = std::getenv(name);
  if ((value == nullptr || *value == '\0') && other != nullptr) value = std::getenv(other);
  return value == nullptr ? "" : value;
}

std::string NameOf(const Place& place) {
  return absl::StrCat("s3://", place.bucket, "/", place.key);
}

// The contents of all such elements.
std::vector<absl::string_view> Elements(absl::string_view xml, absl::string_view name) {
  const std::string open = absl::StrCat("<", name, ">");
  const std::string close = absl::StrCat("</", name, ">");
  std::vector<absl::string_view> found;
  for (size_t at = xml.find(open); at != absl::string_view::npos; at = xml.find(open, at)) {
    const size_t begin = at + open.size();
    at = xml.find(close, begin);
    if (at == absl::string_view::npos) break;
    found.push_back(xml.substr(begin, at - begin));
  }
  return found;
}

// The UTF-8 bytes of a character by its number, such as "#39" or "#xE4"; unset if it is none.
std::optional<std::string> Numbered(absl::string_view entity) {
  uint32_t code = 0;
  if (!absl::ConsumePrefix(&entity, "#")) return std::nullopt;
  const bool read = absl::ConsumePrefix(&entity, "x") ? absl::SimpleHexAtoi(entity, &code)
                                                      : absl::SimpleAtoi(entity, &code);
  if (!read || code == 0 || code > 0x10FFFF) return std::nullopt;
  constexpr int kBitsPerByte = 6;
  const int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  if (more == 0) return std::string(1, static_cast<char>(code));
  std::string bytes(
      1, static_cast<char>((0xFF00 >> (more + 1) & 0xFF) | code >> (kBitsPerByte * more)));
  for (int i = more - 1; i >= 0; --i) {
    bytes += static_cast<char>(0x80 | (code >> (kBitsPerByte * i) & 0x3F));
  }
  return bytes;
}

// Stores differ in which characters of a key they write as entities, and how.
std::string Decoded(absl::string_view text) {
  constexpr std::pair<absl::string_view, char> kNamed[] = {
      {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
  std::string decoded;
  while (!text.empty()) {
    const size_t begin = std::min(text.find('&'), text.size());
    absl::StrAppend(&decoded, text.substr(0, begin));
    text.remove_prefix(begin);
    const size_t end = text.find(';');
    if (text.empty() || end == absl::string_view::npos) break;
    const absl::string_view entity = text.substr(1, end - 1);
    const auto* const named =
        std::find_if(std::begin(kNamed), std::end(kNamed),
                     [entity](const auto& known) { return known.first == entity; });
    if (named != std::end(kNamed)) {
      decoded += named->second;
    } else if (const std::optional<std::string> character = Numbered(entity)) {
      decoded += *character;
    } else {
      absl::StrAppend(&decoded, text.substr(0, end + 1));
    }
    text.remove_prefix(end + 1);
  }
  absl::StrAppend(&decoded, text);
  return decoded;
}

// The text of the first such element; empty if there is none.
std::string Element(absl::string_view xml, absl::string_view name) {
  const std::vector<absl::string_view> found = Elements(xml, name);
  return found.empty() ? "" : Decoded(found.front());
}

bool IsTransient(int code) { return code == 408 || code == 429 || code >= 500; }

absl::Status ErrorOf(int code, absl::string_view body, const std::string& what) {
  const std::string reason = Element(body, "Code");
  const std::string text =
      absl::StrCat(what, ": ", code, reason.empty() ? "" : " ", reason,
                   Element(body, "Message").empty() ? "" : ": ", Element(body, "Message"));
  if (code == 404) return absl::NotFoundError(text);
  if (code == 401 || code == 403) return absl::PermissionDeniedError(text);
  if (IsTransient(code)) return absl::UnavailableError(text);
  return absl::InternalError(text);
}

// SHA-256 of what is added.
class Hash {
 public:
  Hash() : context_(EVP_MD_CTX_new()) { EVP_DigestInit_ex(context_, EVP_sha256(), nullptr); }
  ~Hash() { EVP_MD_CTX_free(context_); }
  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;

  void Add(absl::string_view bytes) { EVP_DigestUpdate(context_, bytes.data(), bytes.size()); }
  // In hexadecimal. The last call.
  std::string Text() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
    unsigned int size = 0;
    EVP_DigestFinal_ex(context_, digest.data(), &size);
    return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), size});
  }

 private:
  EVP_MD_CTX* const context_;
};

// DataLoss if the file ends before.
absl::Status ReadPart(int fd, const std::string& path, int64_t bytes, std::string& part) {
  part.resize(static_cast<size_t>(bytes));
  for (size_t at = 0; at < part.size();) {
    const ssize_t got = read(fd, part.data() + at, part.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError(errno, "reading", path);
    if (got == 0) return absl::DataLossError(absl::StrCat(path, " has become shorter"));
    at += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Options> OptionsFromEnvironment() {
  Options options;
  options.credentials = {Variable("AWS_ACCESS_KEY_ID"), Variable("AWS_SECRET_ACCESS_KEY"),
                         Variable("AWS_SESSION_TOKEN")};
  if (options.credentials.access_key.empty() || options.credentials.secret_key.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.credentials.access_key.empty() ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY",
        " is not set; object storage needs it"));
  }
  if (std::string region = Variable("AWS_REGION", "AWS_DEFAULT_REGION"); !region.empty()) {
    options.region = std::move(region);
  }
  options.endpoint = Variable("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
  if (options.endpoint.empty()) {
    options.endpoint = absl::StrCat("https://s3.", options.region, ".amazonaws.com");
  }
  options.ca_file = Variable("AWS_CA_BUNDLE");
  return options;
}

absl::StatusOr<Place> ParsePlace(absl::string_view text) {
  absl::string_view rest = text;
  Place place;
  if (absl::ConsumePrefix(&rest, "s3://")) {
    const size_t slash = rest.find('/');
    place.bucket = std::string(rest.substr(0, slash));
    if (slash != absl::string_view::npos) place.key = std::string(rest.substr(slash + 1));
    while (absl::EndsWith(place.key, "/")) place.key.pop_back();
    if (!place.bucket.empty() && !place.key.empty()) return place;
  }
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not s3://BUCKET/PREFIX"));
}

ObjectStore::ObjectStore(Options options) : options_(std::move(options)) {}
ObjectStore::~ObjectStore() = default;

absl::StatusOr<std::unique_ptr<ObjectStore>> ObjectStore::Create(Options options) {
  while (absl::EndsWith(options.endpoint, "/")) options.endpoint.pop_back();
  absl::string_view rest = options.endpoint;
  if ((!absl::ConsumePrefix(&rest, "https://") && !absl::ConsumePrefix(&rest, "http://")) ||
      rest.empty() || absl::StrContains(rest, "/")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the endpoint '", options.endpoint, "' is not http://HOST[:PORT] or https://HOST[:PORT]"));
  }
  std::unique_ptr<ObjectStore> store(new ObjectStore(std::move(options)));
  store->host_ = std::string(rest);
  auto client = std::make_unique<httplib::Client>(store->options_.endpoint);
  client->set_keep_alive(true);
  client->set_url_encode(false);  // what is signed is encoded already
  client->set_connection_timeout(store->options_.limit);
  client->set_read_timeout(store->options_.limit);
  client->set_write_timeout(store->options_.limit);
  if (!store->options_.ca_file.empty()) {
    client->set_ca_cert_path(store->options_.ca_file.c_str());
  }
  store->client_ = std::move(client);
  return store;
}

absl::StatusOr<ObjectStore::Answer> ObjectStore::Send(
    const std::string& method, const Place& place, const std::map<std::string, std::string>& query,
    const std::map<std::string, std::string>& headers, absl::string_view body, Effort effort) {
  const std::string what = absl::StrCat(method, " ", NameOf(place));
  Backoff backoff(options_.backoff);
  absl::Status failure;
  const int most = effort == Effort::kOnce ? 1 : options_.tries;
  for (int tries = 0; tries < most; ++tries) {
    if (tries > 0) {
      const std::chrono::milliseconds pause = backoff.Next();
      if (options_.wait) {
        options_.wait(pause);
      } else {
        std::this_thread::sleep_for(pause);
      }
    }
    if (effort != Effort::kOnce && options_.cancelled && options_.cancelled()) {
      return absl::CancelledError(absl::StrCat(what, ": cancelled"));
    }
    Request request = {.method = method,
                       .path = absl::StrCat("/", place.bucket, "/", place.key),
                       .query = query,
                       .headers = headers,
                       .payload_sha256 = Sha256(body)};
    request.headers["host"] = host_;
    Sign(options_.credentials, options_.region, absl::Now(), request);
    httplib::Request http;
    http.method = method;
    http.path = Encode(request.path, true);
    if (!query.empty()) absl::StrAppend(&http.path, "?", QueryText(query));
    for (const auto& [name, value] : request.headers) http.headers.emplace(name, value);
    http.body = std::string(body);
    const httplib::Result result = client_->send(http);
    if (!result) {
      failure = absl::UnavailableError(
          absl::StrCat(what, " at ", options_.endpoint, ": ", httplib::to_string(result.error())));
      continue;
    }
    if (result->status < 300) {
      return Answer{result->status, result->body, result->get_header_value("ETag")};
    }
    failure = ErrorOf(result->status, result->body, what);
    if (!IsTransient(result->status)) return failure;
  }
  return failure;
}

absl::StatusOr<Sent> ObjectStore::Put(const Place& place, absl::string_view content) {
  NIBBLE_ASSIGN_OR_RETURN(const Answer answer, Send("PUT", place, {}, {}, content));
  return Sent{.bytes = static_cast<int64_t>(content.size()),
              .sha256 = Sha256(content),
              .etag = answer.etag};
}

absl::Status ObjectStore::Delete(const Place& place) {
  const absl::Status status = Send("DELETE", place, {}, {}, "").status();
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

int64_t PartBytes(int64_t file_bytes, int64_t least) {
  return std::max(least, file_bytes / kMostParts + 1);
}

absl::StatusOr<std::string> ObjectStore::PutParts(const Place& place, const std::string& upload,
                                                  int fd, const std::string& path, Sent& sent) {
  const int64_t part_bytes = PartBytes(sent.bytes, options_.part_bytes);
  std::string list = "<CompleteMultipartUpload>";
  std::string part;
  Hash all;
  int number = 0;
  if (lseek(fd, 0, SEEK_SET) != 0) return ErrnoError(errno, "reading", path);
  for (int64_t at = 0; at < sent.bytes; at += part_bytes) {
    NIBBLE_RETURN_IF_ERROR(ReadPart(fd, path, std::min(part_bytes, sent.bytes - at), part));
    all.Add(part);
    ++number;
    NIBBLE_ASSIGN_OR_RETURN(
        const Answer answer,
        Send("PUT", place, {{"partNumber", absl::StrCat(number)}, {"uploadId", upload}}, {}, part));
    absl::StrAppend(&list, "<Part><PartNumber>", number, "</PartNumber><ETag>",
                    absl::StrReplaceAll(answer.etag, {{"\"", "&quot;"}}), "</ETag></Part>");
  }
  sent.sha256 = all.Text();
  return list + "</CompleteMultipartUpload>";
}

absl::StatusOr<std::string> ObjectStore::Complete(const Place& place, const std::string& upload,
                                                  const std::string& parts) {
  NIBBLE_ASSIGN_OR_RETURN(const Answer answer,
                          Send("POST", place, {{"uploadId", upload}}, {}, parts));
  // A store may answer 200 first and find the error later.
  if (!absl::StrContains(answer.body, "<Error>")) return Element(answer.body, "ETag");
  return ErrorOf(500, answer.body, absl::StrCat("completing ", NameOf(place)));
}

absl::StatusOr<Sent> ObjectStore::PutFile(const Place& place, const std::string& path) {
  const OwnedDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return ErrnoError(errno, "opening", path);
  struct stat info = {};
  if (fstat(file.get(), &info) != 0) return ErrnoError(errno, "examining", path);
  Sent sent = {.bytes = info.st_size};
  if (sent.bytes <= options_.part_bytes) {
    std::string content;
    NIBBLE_RETURN_IF_ERROR(ReadPart(file.get(), path, sent.bytes, content));
    return Put(place, content);
  }
  absl::Status status;
  for (int tries = 0; tries < kCompleteTries; ++tries) {
    NIBBLE_ASSIGN_OR_RETURN(const Answer begun, Send("POST", place, {{"uploads", ""}}, {}, ""));
    const std::string upload = Element(begun.body, "UploadId");
    if (upload.empty()) {
      return absl::InternalError(
          absl::StrCat("uploading ", NameOf(place), ": the store's answer has no UploadId"));
    }
    const absl::StatusOr<std::string> parts = PutParts(place, upload, file.get(), path, sent);
    absl::StatusOr<std::string> etag =
        parts.ok() ? Complete(place, upload, *parts) : absl::StatusOr<std::string>(parts.status());
    status = etag.status();
    if (status.ok()) {
      sent.etag = *std::move(etag);
      return sent;
    }
    // The store would keep the parts.
    (void)Send("DELETE", place, {{"uploadId", upload}}, {}, "", Effort::kOnce);
    // A store that completed the upload and whose answer was lost does not know it any more:
    // whether the object is this one is unknown.
    if (!parts.ok() || !absl::IsNotFound(status)) break;
  }
  return status;
}

absl::StatusOr<std::vector<Listed>> ObjectStore::List(const Place& prefix) {
  std::vector<Listed> listed;
  std::map<std::string, std::string> query = {{"list-type", "2"}, {"prefix", prefix.key}};
  while (true) {
    NIBBLE_ASSIGN_OR_RETURN(const Answer answer, Send("GET", {prefix.bucket, ""}, query, {}, ""));
    for (const absl::string_view object : Elements(answer.body, "Contents")) {
      Listed& one = listed.emplace_back();
      one.key = Element(object, "Key");
      one.etag = Element(object, "ETag");
      if (!absl::SimpleAtoi(Element(object, "Size"), &one.bytes)) one.bytes = -1;
    }
    if (Element(answer.body, "IsTruncated") != "true") return listed;
    query["continuation-token"] = Element(answer.body, "NextContinuationToken");
    if (query["continuation-token"].empty()) {
      return absl::InternalError(
          absl::StrCat("listing ", NameOf(prefix), ": a page has no token for the next one"));
    }
  }
}

absl::Status ObjectStore::AbortUploads(const Place& prefix) {
  const std::map<std::string, std::string> query = {{"prefix", absl::StrCat(prefix.key, "/")},
                                                    {"uploads", ""}};
  // A page has up to 1000, and those that were aborted are not listed again.
  for (int page = 0; page < kMostPages; ++page) {
    NIBBLE_ASSIGN_OR_RETURN(const Answer answer, Send("GET", {prefix.bucket, ""}, query, {}, ""));
    const std::vector<absl::string_view> uploads = Elements(answer.body, "Upload");
    if (uploads.empty()) return absl::OkStatus();
    for (const absl::string_view upload : uploads) {
      const absl::Status aborted = Send("DELETE", {prefix.bucket, Element(upload, "Key")},
                                        {{"uploadId", Element(upload, "UploadId")}}, {}, "")
                                       .status();
      if (!aborted.ok() && !absl::IsNotFound(aborted)) return aborted;
    }
  }
  return absl::FailedPreconditionError(
      absl::StrCat(NameOf(prefix), " has multipart uploads that do not end when aborted"));
}

absl::StatusOr<std::string> ObjectStore::Get(const Place& place, size_t max_bytes) {
  NIBBLE_ASSIGN_OR_RETURN(
      Answer answer, Send("GET", place, {}, {{"range", absl::StrCat("bytes=0-", max_bytes)}}, ""));
  if (answer.body.size() <= max_bytes) return std::move(answer.body);
  return absl::ResourceExhaustedError(
      absl::StrCat(NameOf(place), " has more than ", max_bytes, " bytes"));
}

absl::StatusOr<std::string> ObjectStore::GetFile(const Place& place, int64_t bytes,
                                                 const std::string& path) {
  const OwnedDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (file.get() < 0) return ErrnoError(errno, "creating", path);
  Hash all;
  for (int64_t at = 0; at < bytes; at += options_.part_bytes) {
    const int64_t end = std::min(bytes, at + options_.part_bytes);
    NIBBLE_ASSIGN_OR_RETURN(
        const Answer answer,
        Send("GET", place, {}, {{"range", absl::StrCat("bytes=", at, "-", end - 1)}}, ""));
    if (static_cast<int64_t>(answer.body.size()) != end - at) {
      return absl::DataLossError(absl::StrCat(NameOf(place), " has ", answer.body.size(),
                                              " bytes from ", at, " on, expected ", end - at));
    }
    NIBBLE_RETURN_IF_ERROR(WriteAll(
        file.get(),
        absl::MakeSpan(reinterpret_cast<const std::byte*>(answer.body.data()), answer.body.size()),
        path, options_.faults));
    all.Add(answer.body);
  }
  NIBBLE_RETURN_IF_ERROR(SyncFile(path, options_.faults));
  return all.Text();
}

}  // namespace nibble::s3
