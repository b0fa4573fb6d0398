// The fields of one JSON object, each of which must be asked for: what nobody asked about is an
// error in the end, so that nothing is passed over in silence. The first error stays; after it
// every answer is of no use.
//
// A field with null counts as absent.
//
// Ownership: borrows the object. Thread-safety: none.
#ifndef NIBBLE_WORKER_INTEROP_CONFIG_FIELDS_H_
#define NIBBLE_WORKER_INTEROP_CONFIG_FIELDS_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"

namespace nibble {

class ConfigFields {
 public:
  // `where` begins messages: "config.json".
  ConfigFields(const nlohmann::json& object, std::string_view where)
      : object_(object), where_(where) {}

  // Null where it is absent. Counts as asked for.
  const nlohmann::json* Find(std::string_view field);

  // An integer of [1, max]. Without `absent` the field must be there.
  int64_t Size(std::string_view field, int64_t max, std::optional<int64_t> absent = {});
  // Finite; of [min, max].
  double Number(std::string_view field, double min, double max, std::optional<double> absent = {});
  bool Bool(std::string_view field, bool absent);
  std::string Text(std::string_view field, std::optional<std::string_view> absent = {});

  // The one value that a model here can have. `absent` is what leaving the field out means.
  void Must(std::string_view field, const nlohmann::json& value, const nlohmann::json& absent);
  void Must(std::string_view field, const nlohmann::json& value);  // which absence means too
  // Fields that no logit depends on.
  void Free(std::initializer_list<std::string_view> fields);

  // `allowed` says what is: "is not one of mamba, attention, mlp".
  void Refuse(std::string_view field, const nlohmann::json& value, std::string_view allowed);

  const absl::Status& status() const { return status_; }
  // The first error, if need be of a field that nobody asked for.
  absl::Status Finish();

 private:
  const nlohmann::json* Required(std::string_view field, bool optional);

  const nlohmann::json& object_;
  const std::string where_;
  std::set<std::string, std::less<>> asked_;
  absl::Status status_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_INTEROP_CONFIG_FIELDS_H_
