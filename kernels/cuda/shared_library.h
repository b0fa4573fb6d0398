// CUDA's libraries, loaded at run time, so that programs also start on machines without them.
//
// Ownership: loaded libraries stay until the process ends. Thread-safety: all functions.
#ifndef NIBBLE_KERNELS_CUDA_SHARED_LIBRARY_H_
#define NIBBLE_KERNELS_CUDA_SHARED_LIBRARY_H_

#include <dlfcn.h>

#include <string>
#include <vector>

namespace nibble {

// What to try for a file such as "libnccl.so.2": first the name alone, which the dynamic linker
// searches for; then the folders of $CUDA_HOME and of /usr/local/cuda.
std::vector<std::string> CudaLibraryPlaces(const std::string& file);

// The first of them that can be loaded; null if none can.
void* LoadFirstOf(const std::vector<std::string>& places);

// Sets `function` to the one of this name. If there is none, it becomes null, and `missing` the
// name, unless it has one already.
template <class Function>
void FindFunction(void* library, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr && missing.empty()) missing = name;
}

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_SHARED_LIBRARY_H_
