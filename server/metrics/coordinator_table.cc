#include "server/metrics/coordinator_table.h"

namespace nibble {

const CoordinatorTable& CoordinatorRows() {
  static const auto* const rows = new CoordinatorTable;
  return *rows;
}

}  // namespace nibble
