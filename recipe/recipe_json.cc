#include "recipe/recipe_json.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/json_text.h"
#include "common/status_macros.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

// ---- writing --------------------------------------------------------------------------------

Json Settings(const std::vector<FieldSetting>& settings) {
  Json out = Json::array();
  for (const FieldSetting& setting : settings) {
    out.push_back({{"field", setting.field}, {"value", setting.value}});
  }
  return out;
}

Json ToTree(const Recipe& recipe) {
  Json layers = Json::array();
  for (const LayerRule& rule : recipe.layers) {
    layers.push_back({{"match", rule.match}, {"set", Settings(rule.set)}});
  }
  return {{"preset", recipe.preset}, {"set", Settings(recipe.set)}, {"layers", layers}};
}

std::string Dump(const Json& tree) {
  return tree.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// ---- reading --------------------------------------------------------------------------------

absl::Status Refuse(const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(path.empty() ? "JSON" : path, ": ", why));
}

// An object with all fields of one list, and optionally those of a second one.
class ObjectReader {
 public:
  static absl::StatusOr<ObjectReader> Open(const Json& tree, const std::string& path,
                                           std::initializer_list<const char*> fields,
                                           std::initializer_list<const char*> optional = {}) {
    if (!tree.is_object()) return Refuse(path, "is not an object");
    std::vector<std::string> known(fields.begin(), fields.end());
    known.insert(known.end(), optional.begin(), optional.end());
    for (const auto& [key, value] : tree.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        return Refuse(
            path, absl::StrCat("unknown field '", key, "'; allowed: ", absl::StrJoin(known, ", ")));
      }
    }
    for (const char* const field : fields) {
      if (!tree.contains(field)) return Refuse(path, absl::StrCat("lacks the field '", field, "'"));
    }
    return ObjectReader(tree, path);
  }

  std::string PathOf(const char* field) const {
    return path_.empty() ? field : absl::StrCat(path_, ".", field);
  }
  bool Has(const char* field) const { return tree_->contains(field); }
  const Json& Tree(const char* field) const { return (*tree_)[field]; }

  absl::Status Read(const char* field, std::string& out) const {
    const Json& value = Tree(field);
    if (!value.is_string()) return Refuse(PathOf(field), "is not a string");
    out = value.get_ref<const std::string&>();
    return absl::OkStatus();
  }

  absl::Status Read(const char* field, int64_t& out) const {
    const Json& value = Tree(field);
    const bool fits = value.is_number_unsigned()
                          ? value.get<uint64_t>() <= std::numeric_limits<int64_t>::max()
                          : value.is_number_integer();
    if (!fits) return Refuse(PathOf(field), "is not an integer of 64 bits");
    out = value.get<int64_t>();
    return absl::OkStatus();
  }

  absl::Status Read(const char* field, double& out) const {
    const Json& value = Tree(field);
    if (!value.is_number()) return Refuse(PathOf(field), "is not a number");
    out = value.get<double>();
    return absl::OkStatus();
  }

 private:
  ObjectReader(const Json& tree, std::string path) : tree_(&tree), path_(std::move(path)) {}

  const Json* tree_;
  std::string path_;
};

// Reads each element of an array with `read(tree, path, out)`.
template <class T, class ReadOne>
absl::Status ReadArray(const Json& tree, const std::string& path, std::vector<T>& out,
                       const ReadOne& read) {
  if (!tree.is_array()) return Refuse(path, "is not an array");
  for (size_t i = 0; i < tree.size(); ++i) {
    out.emplace_back();
    NIBBLE_RETURN_IF_ERROR(read(tree[i], absl::StrCat(path, "[", i, "]"), out.back()));
  }
  return absl::OkStatus();
}

absl::Status ReadSetting(const Json& tree, const std::string& path, FieldSetting& out) {
  NIBBLE_ASSIGN_OR_RETURN(const ObjectReader object,
                          ObjectReader::Open(tree, path, {"field", "value"}));
  NIBBLE_RETURN_IF_ERROR(object.Read("field", out.field));
  return object.Read("value", out.value);
}

absl::Status ReadRule(const Json& tree, const std::string& path, LayerRule& out) {
  NIBBLE_ASSIGN_OR_RETURN(const ObjectReader object,
                          ObjectReader::Open(tree, path, {"match", "set"}));
  NIBBLE_RETURN_IF_ERROR(object.Read("match", out.match));
  return ReadArray(object.Tree("set"), object.PathOf("set"), out.set, ReadSetting);
}

absl::Status ReadRecipe(const Json& tree, const std::string& path, Recipe& out) {
  NIBBLE_ASSIGN_OR_RETURN(const ObjectReader object,
                          ObjectReader::Open(tree, path, {"preset", "set", "layers"}));
  NIBBLE_RETURN_IF_ERROR(object.Read("preset", out.preset));
  NIBBLE_RETURN_IF_ERROR(ReadArray(object.Tree("set"), object.PathOf("set"), out.set, ReadSetting));
  return ReadArray(object.Tree("layers"), object.PathOf("layers"), out.layers, ReadRule);
}

absl::Status ReadRevision(const Json& tree, const std::string& path, Revision& out) {
  NIBBLE_ASSIGN_OR_RETURN(
      const ObjectReader object,
      ObjectReader::Open(tree, path,
                         {"number", "first_step", "author", "time_unix_ms", "reason", "recipe"},
                         {"refused", "lr_scale"}));
  NIBBLE_RETURN_IF_ERROR(object.Read("number", out.number));
  NIBBLE_RETURN_IF_ERROR(object.Read("first_step", out.first_step));
  NIBBLE_RETURN_IF_ERROR(object.Read("author", out.author));
  NIBBLE_RETURN_IF_ERROR(object.Read("time_unix_ms", out.time_unix_ms));
  NIBBLE_RETURN_IF_ERROR(object.Read("reason", out.reason));
  if (object.Has("refused")) NIBBLE_RETURN_IF_ERROR(object.Read("refused", out.refused));
  if (object.Has("lr_scale")) NIBBLE_RETURN_IF_ERROR(object.Read("lr_scale", out.lr_scale));
  return ReadRecipe(object.Tree("recipe"), object.PathOf("recipe"), out.recipe);
}

absl::Status ReadPromotion(const Json& tree, const std::string& path, Promotion& out) {
  NIBBLE_ASSIGN_OR_RETURN(
      const ObjectReader object,
      ObjectReader::Open(tree, path, {"first_step", "end_step", "layers", "guard"}));
  NIBBLE_RETURN_IF_ERROR(object.Read("first_step", out.first_step));
  NIBBLE_RETURN_IF_ERROR(object.Read("end_step", out.end_step));
  NIBBLE_RETURN_IF_ERROR(object.Read("layers", out.layers));
  return object.Read("guard", out.guard);
}

}  // namespace

std::string ToJson(const Recipe& recipe) { return Dump(ToTree(recipe)); }

std::string ToJson(const Timeline& timeline) {
  Json revisions = Json::array();
  for (const Revision& revision : timeline.revisions()) {
    revisions.push_back({{"number", revision.number},
                         {"first_step", revision.first_step},
                         {"author", revision.author},
                         {"time_unix_ms", revision.time_unix_ms},
                         {"reason", revision.reason},
                         {"recipe", ToTree(revision.recipe)}});
    if (!revision.refused.empty()) revisions.back()["refused"] = revision.refused;
    if (revision.lr_scale != 1) revisions.back()["lr_scale"] = revision.lr_scale;
  }
  Json tree = {{"version", kTimelineJsonVersion}, {"revisions", revisions}};
  if (timeline.promotions().empty()) return Dump(tree);
  Json promotions = Json::array();
  for (const Promotion& promotion : timeline.promotions()) {
    promotions.push_back({{"first_step", promotion.first_step},
                          {"end_step", promotion.end_step},
                          {"layers", promotion.layers},
                          {"guard", promotion.guard}});
  }
  tree["promotions"] = promotions;
  return Dump(tree);
}

absl::StatusOr<Timeline> TimelineFromJson(std::string_view text) {
  if (NestsDeeperThan(kMaxJsonDepth, text)) {
    return absl::InvalidArgumentError(absl::StrCat("timeline: nested deeper than ", kMaxJsonDepth));
  }
  const Json tree = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (tree.is_discarded()) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeline: ", text.size(), " bytes are not JSON"));
  }
  // The version comes first: other versions may have other fields.
  if (tree.is_object() && tree.contains("version") &&
      tree["version"] != Json(kTimelineJsonVersion)) {
    return Refuse("version", absl::StrCat(Dump(tree["version"]),
                                          " is not known; allowed: ", kTimelineJsonVersion));
  }
  NIBBLE_ASSIGN_OR_RETURN(const ObjectReader object,
                          ObjectReader::Open(tree, "", {"version", "revisions"}, {"promotions"}));
  std::vector<Revision> revisions;
  NIBBLE_RETURN_IF_ERROR(ReadArray(object.Tree("revisions"), "revisions", revisions, ReadRevision));
  std::vector<Promotion> promotions;
  if (object.Has("promotions")) {
    NIBBLE_RETURN_IF_ERROR(
        ReadArray(object.Tree("promotions"), "promotions", promotions, ReadPromotion));
  }
  return Timeline::FromRevisions(std::move(revisions), std::move(promotions));
}

}  // namespace nibble
