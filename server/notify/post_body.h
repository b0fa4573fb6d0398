// What is posted of an event, and its signature. docs/guide/notifications.md describes both.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_NOTIFY_POST_BODY_H_
#define NIBBLE_SERVER_NOTIFY_POST_BODY_H_

#include <string>
#include <string_view>

#include "proto/nibble/v1/job.pb.h"

namespace nibble {

// One JSON object. Its "id" is the same whenever the event is posted and that of no other event,
// also where the coordinator's store was put back from a backup. `job`: as it is now.
std::string PostBody(const std::string& cluster, const v1::Job& job, const v1::JobEvent& event);

// "sha256=" and the HMAC-SHA256 of the body under the secret, in hexadecimal.
std::string PostSignature(std::string_view secret, std::string_view body);

}  // namespace nibble

#endif  // NIBBLE_SERVER_NOTIFY_POST_BODY_H_
