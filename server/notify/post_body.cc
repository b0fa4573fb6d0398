#include "server/notify/post_body.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "job/choices.h"
#include "nlohmann/json.hpp"
#include "server/state/notify_events.h"

namespace nibble {

std::string PostBody(const std::string& cluster, const v1::Job& job, const v1::JobEvent& event) {
  const std::optional<NotifyEvent> posted = PostedAs(event);
  nlohmann::ordered_json body = {
      {"id",
       absl::StrCat(cluster, "/", event.job(), "/", event.number(), "@", event.time_unix_ms())},
      {"cluster", cluster},
      {"job", event.job()},
      {"name", job.name()},
      {"owner", job.owner()},
      {"event", std::string(posted ? ChoiceName(*posted) : "unknown")},
      {"reason", event.text()},
      {"author", event.author()},
      {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixMillis(event.time_unix_ms()),
                                absl::UTCTimeZone())},
      {"step", event.step() >= 0 ? event.step() : job.next_step()},
      {"steps", job.shape().steps()},
      {"attempt", event.attempt()}};
  if (event.revision() > 0) body["revision"] = event.revision();
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string PostSignature(std::string_view secret, std::string_view body) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(body.data()), body.size(), digest, &size);
  return absl::StrCat("sha256=", absl::BytesToHexString(absl::string_view(
                                     reinterpret_cast<const char*>(digest), size)));
}

}  // namespace nibble
