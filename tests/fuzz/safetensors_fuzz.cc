// Feeds arbitrary bytes to SafetensorsFile::Parse and checks the guarantees of its header for every
// accepted file. The address sanitizer detects a view that leaves the input, since each input is in
// an allocation of exactly its size.
//
// An input is tried twice: as a whole file, and, if it begins with '{', as "header NUL payload"
// with the length prefix computed here. In the second form a mutation can change the header's
// length and still reach the checks after the prefix.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string_view>

#include "common/safetensors/dtype.h"
#include "common/safetensors/reader.h"

namespace {

// Not assert(): that one is absent from optimised builds.
void Check(bool ok, const char* claim) {
  if (ok) return;
  std::fprintf(stderr, "broken: %s\n", claim);
  std::abort();
}

// A volatile sink, so that the compiler keeps the reads.
volatile unsigned char touched;

void CheckTensor(const nibble::SafetensorsFile& file, const nibble::TensorInfo& tensor) {
  Check(file.Find(tensor.name) == &tensor, "a tensor is found by its name");
  unsigned char sum = 0;
  for (const std::byte b : tensor.data) sum ^= static_cast<unsigned char>(b);
  touched = sum;

  unsigned __int128 bytes = nibble::FileDTypeSize(tensor.dtype);
  Check(bytes > 0, "a dtype has a size");
  for (const int64_t dim : tensor.shape) {
    Check(dim >= 0, "a dimension is not negative");
    bytes *= static_cast<unsigned __int128>(dim);
    Check(bytes <= std::numeric_limits<int64_t>::max(), "a product does not overflow");
  }
  Check(bytes == tensor.data.size(), "dtype and shape give the size of the data");
}

void CheckBytes(std::string_view bytes) {
  const auto file = nibble::SafetensorsFile::Parse(bytes);
  if (!file.ok()) {
    Check(!file.status().message().empty(), "a refusal has a reason");
    Check(file.status().message().size() < 2000, "a refusal is short for any input");
    return;
  }
  // In the order of their data the tensors must be contiguous up to the end of the input, from the
  // byte given by the prefix: then none overlap and no bytes remain.
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(bytes[i]);
  const auto* next = reinterpret_cast<const std::byte*>(bytes.data()) + 8 + length;
  for (const nibble::TensorInfo& tensor : file->tensors()) {
    Check(tensor.data.data() == next, "a tensor begins where the previous one ends");
    next += tensor.data.size();
    CheckTensor(*file, tensor);
  }
  Check(next == reinterpret_cast<const std::byte*>(bytes.data() + bytes.size()),
        "the tensors cover the payload");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  CheckBytes(input);
  if (input.empty() || input[0] != '{') return 0;

  const std::string_view header = input.substr(0, input.find('\0'));
  const std::string_view payload =
      header.size() < size ? input.substr(header.size() + 1) : std::string_view();
  const size_t file_size = 8 + header.size() + payload.size();
  const std::unique_ptr<char[]> file(new char[file_size]);
  for (int i = 0; i < 8; ++i) file[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
  std::memcpy(file.get() + 8, header.data(), header.size());
  if (!payload.empty()) {
    std::memcpy(file.get() + 8 + header.size(), payload.data(), payload.size());
  }
  CheckBytes(std::string_view(file.get(), file_size));
  return 0;
}
