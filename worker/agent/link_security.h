// What a daemon shows to others, and whom it believes.
//
// Ownership: values. Thread-safety: values.
#ifndef NIBBLE_WORKER_AGENT_LINK_SECURITY_H_
#define NIBBLE_WORKER_AGENT_LINK_SECURITY_H_

#include <string>

namespace nibble {

// PEM texts; without a root the connection is neither encrypted nor authenticated.
struct LinkSecurity {
  std::string root_certificates;
  std::string certificate;
  std::string private_key;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_LINK_SECURITY_H_
