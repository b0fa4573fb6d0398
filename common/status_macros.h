// Early return of errors.
//
//   NIBBLE_RETURN_IF_ERROR(file.Write(bytes));
//   NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
//
// Both return the status from the enclosing function, which returns absl::Status or an
// absl::StatusOr. NIBBLE_ASSIGN_OR_RETURN takes the expression once; a declaration whose type has
// a comma is written with `auto`. It expands to several statements: not the body of an `if`
// without braces.
//
// A value that must stay alive is assigned: `NIBBLE_RETURN_IF_ERROR(Lock::Take(path).status())`
// would take the lock and release it at once.
#ifndef NIBBLE_COMMON_STATUS_MACROS_H_
#define NIBBLE_COMMON_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define NIBBLE_RETURN_IF_ERROR(...)              \
  do {                                           \
    absl::Status nibble_status_ = (__VA_ARGS__); \
    if (!nibble_status_.ok()) [[unlikely]]       \
      return nibble_status_;                     \
  } while (false)

#define NIBBLE_ASSIGN_OR_RETURN(declaration, ...) \
  NIBBLE_ASSIGN_OR_RETURN_(NIBBLE_STATUS_NAME_(nibble_result_, __LINE__), declaration, __VA_ARGS__)

#define NIBBLE_ASSIGN_OR_RETURN_(result, declaration, ...) \
  auto result = (__VA_ARGS__);                             \
  if (!result.ok()) [[unlikely]]                           \
    return std::move(result).status();                     \
  declaration = *std::move(result)

#define NIBBLE_STATUS_NAME_(prefix, line) NIBBLE_STATUS_JOIN_(prefix, line)
#define NIBBLE_STATUS_JOIN_(prefix, line) prefix##line

#endif  // NIBBLE_COMMON_STATUS_MACROS_H_
