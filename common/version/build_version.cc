#include "common/version/build_version.h"

#include "common/version.h"

namespace nibble {

std::string VersionWithCommit(const std::string& version, const std::string& commit) {
  return commit.empty() ? version : version + ", commit " + commit;
}

std::string BuildVersion() { return VersionWithCommit(kVersion, NIBBLE_COMMIT); }

}  // namespace nibble
