#include "common/process/spawn_arguments.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace nibble {

std::vector<std::string> EnvironmentWith(const std::map<std::string, std::string>& over) {
  std::vector<std::string> all;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string entry = *at;
    if (!over.contains(entry.substr(0, entry.find('=')))) all.push_back(entry);
  }
  for (const auto& [name, value] : over) all.push_back(absl::StrCat(name, "=", value));
  return all;
}

std::vector<char*> PointersTo(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace nibble
