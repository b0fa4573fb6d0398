#include "worker/metrics/worker_table.h"

namespace nibble {

const WorkerTable& WorkerRows() {
  static const auto* const rows = new WorkerTable;
  return *rows;
}

}  // namespace nibble
