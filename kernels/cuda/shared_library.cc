#include "kernels/cuda/shared_library.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace nibble {

std::vector<std::string> CudaLibraryPlaces(const std::string& file) {
  std::vector<std::string> places = {file};
  std::vector<std::string> homes = {"/usr/local/cuda"};
  if (const char* home = std::getenv("CUDA_HOME"); home != nullptr && *home != '\0') {
    homes.insert(homes.begin(), home);
  }
  for (const std::string& home : homes) {
    for (const char* folder : {"targets/x86_64-linux/lib", "lib64", "lib"}) {
      places.push_back(absl::StrCat(home, "/", folder, "/", file));
    }
  }
  return places;
}

void* LoadFirstOf(const std::vector<std::string>& places) {
  for (const std::string& place : places) {
    if (void* const library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) {
      return library;
    }
  }
  return nullptr;
}

}  // namespace nibble
