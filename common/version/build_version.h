// The version of this build: that of the source, and the commit if the build was given it.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_COMMON_VERSION_BUILD_VERSION_H_
#define NIBBLE_COMMON_VERSION_BUILD_VERSION_H_

#include <string>

namespace nibble {

// "0.1.0, commit 2df3eca5b1c0", or "0.1.0" for an empty commit.
std::string VersionWithCommit(const std::string& version, const std::string& commit);

// Of this build: `bazel build --define=COMMIT=$(git describe --always --dirty)`.
std::string BuildVersion();

}  // namespace nibble

#endif  // NIBBLE_COMMON_VERSION_BUILD_VERSION_H_
