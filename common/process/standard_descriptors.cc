#include "common/process/standard_descriptors.h"

#include <fcntl.h>
#include <unistd.h>

#include <initializer_list>

namespace nibble {

void ReserveStandardDescriptors() {
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(standard, F_GETFD) >= 0) continue;
    // Lower descriptors are open, so that open() returns `standard`.
    const int fd = open("/dev/null", standard == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    if (fd < 0) return;
  }
}

}  // namespace nibble
