// Runs a fuzz target over stored inputs without libFuzzer, so that every build replays the corpus:
//
//   NAME_corpus_test DIRECTORY|FILE...
//
// A failed check aborts inside the target, after the input's name was printed. Fails if there was
// nothing to replay, so that a missing corpus does not pass.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;

// False if the file cannot be read.
bool Replay(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in.is_open() || in.bad()) return false;
  // Exactly the input's size, so that a sanitizer detects a read past its end.
  const std::unique_ptr<uint8_t[]> data(new uint8_t[text.size()]);
  std::copy(text.begin(), text.end(), data.get());
  LLVMFuzzerTestOneInput(data.get(), text.size());
  return true;
}

// False, with a line on stderr, if `root` does not exist or cannot be walked.
bool Collect(const fs::path& root, std::vector<fs::path>& inputs) {
  std::error_code error;
  if (fs::is_regular_file(root, error)) {
    inputs.push_back(root);
    return true;
  }
  for (fs::recursive_directory_iterator it(root, error), end; !error && it != end;
       it.increment(error)) {
    if (it->is_regular_file(error)) inputs.push_back(it->path());
  }
  if (error) std::fprintf(stderr, "%s: %s\n", root.c_str(), error.message().c_str());
  return !error;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<fs::path> inputs;
  for (int i = 1; i < argc; ++i) {
    if (!Collect(argv[i], inputs)) return 1;
  }
  std::sort(inputs.begin(), inputs.end());
  for (const fs::path& input : inputs) {
    std::fprintf(stderr, "replaying %s\n", input.c_str());
    if (!Replay(input)) {
      std::fprintf(stderr, "%s: cannot be read\n", input.c_str());
      return 1;
    }
  }
  if (inputs.empty()) {
    std::fprintf(stderr, "no inputs found; give the corpus directories as arguments\n");
    return 1;
  }
  std::printf("%zu inputs\n", inputs.size());
  return 0;
}
