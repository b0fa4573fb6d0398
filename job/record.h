// Records: structs described field by field, so that reading, writing, checking and documentation
// of a spec come from one table (job/job_fields.cc).
//
// A field has its documentation and reads, writes and checks its part of the struct. Messages name
// fields by path: "data.train[0].path".
//
// Ownership: a field borrows the records it is made from, which are immutable and never freed.
// Thread-safety: immutable after it is made; pure functions.
#ifndef NIBBLE_JOB_RECORD_H_
#define NIBBLE_JOB_RECORD_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "job/choices.h"
#include "job/field_values.h"
#include "job/problems.h"
#include "job/yaml_tree.h"

namespace nibble {

inline constexpr char kSectionType[] = "section";

struct FieldDoc {
  std::string path;           // relative to its record
  std::string type;           // "number", "one of", "list", "section", …
  std::string default_value;  // as YAML; empty for sections and required fields
  std::string allowed;
  std::string unit;
  std::string meaning;
  bool required = false;
  std::string default_rule;  // for a default that follows from other fields: see job/defaults.h
  std::string shorthand;     // the field that a scalar sets in place of a map; empty: none
};

template <class T>
struct Field {
  FieldDoc doc;
  std::function<void(const YamlNode&, const std::string& path, T&, Problems&)> read;
  // Empty: the field is not written on its own.
  std::function<YamlNode(const T&)> write;
  // Empty: nothing to check. Skips fields that have a problem already.
  std::function<void(const T&, const std::string& path, Problems&)> check;
  // The fields of a section, or of a list's entries; their paths begin with the path of this field.
  std::vector<FieldDoc> inside;

  Field Required() && {
    doc.required = true;
    doc.default_value.clear();
    return std::move(*this);
  }
  // For an unset field, job/defaults.h computes the default that `rule` describes.
  Field Follows(std::string rule) && {
    doc.default_rule = std::move(rule);
    return std::move(*this);
  }
  // For fields that are checked elsewhere, against this description.
  Field Allowing(std::string allowed) && {
    doc.allowed = std::move(allowed);
    check = nullptr;
    return std::move(*this);
  }
};

template <class T>
struct Record {
  std::string shorthand;  // the field that a scalar sets in place of a map; empty: none
  std::vector<Field<T>> fields;
  std::function<void(T&)> finish;  // fills in unset fields; may be empty
};

// ---- whole records --------------------------------------------------------------------------

// Reads fields in the order of the record, not of the text.
template <class T>
void ReadRecord(const YamlNode& node, const std::string& path, const Record<T>& record, T& value,
                Problems& problems) {
  std::vector<std::string> names;
  for (const Field<T>& field : record.fields) names.push_back(field.doc.path);
  const std::vector<const YamlNode*> given =
      MatchKeys(node, path, names, record.shorthand, problems);
  if (given.empty()) return;
  for (size_t i = 0; i < given.size(); ++i) {
    const Field<T>& field = record.fields[i];
    const bool whole = node.kind == YamlNode::Kind::kScalar;
    const std::string inner = whole ? path : JoinPath(path, field.doc.path);
    if (given[i] != nullptr) {
      field.read(*given[i], inner, value, problems);
    } else if (field.doc.required) {
      problems.Add(JoinPath(path, field.doc.path), absl::StrCat("missing; ", field.doc.meaning));
    } else if (field.doc.type == kSectionType) {
      field.read(YamlNode(), inner, value, problems);  // reports the fields that it requires
    }
  }
  if (record.finish) record.finish(value);
}

template <class T>
YamlNode WriteRecord(const Record<T>& record, const T& value) {
  YamlNode map = YamlNode::Map();
  for (const Field<T>& field : record.fields) {
    if (field.write) map.Put(field.doc.path, field.write(value));
  }
  return map;
}

template <class T>
void CheckRecord(const Record<T>& record, const T& value, const std::string& path,
                 Problems& problems) {
  for (const Field<T>& field : record.fields) {
    if (field.check) field.check(value, JoinPath(path, field.doc.path), problems);
  }
}

// All fields; those of sections and lists follow their section or list.
template <class T>
std::vector<FieldDoc> DocsOf(const Record<T>& record, const std::string& prefix) {
  std::vector<FieldDoc> docs;
  for (const Field<T>& field : record.fields) {
    docs.push_back(field.doc);
    docs.back().path = prefix + field.doc.path;
    for (FieldDoc inner : field.inside) {
      inner.path = prefix + inner.path;
      docs.push_back(std::move(inner));
    }
  }
  return docs;
}

// ---- fields ---------------------------------------------------------------------------------

template <class S>
Field<S> Leaf(std::string name, std::string type, std::string allowed, std::string unit,
              std::string meaning) {
  Field<S> field;
  field.doc = {.path = std::move(name),
               .type = std::move(type),
               .allowed = std::move(allowed),
               .unit = std::move(unit),
               .meaning = std::move(meaning)};
  return field;
}

template <class S>
Field<S> WithDefault(Field<S> field) {
  field.doc.default_value = FlowYaml(field.write(S()));
  return field;
}

template <class S, class V>
Field<S> Number(std::string name, V S::*member, Range<V> range, std::string unit,
                std::string meaning) {
  auto field = Leaf<S>(std::move(name), std::is_integral_v<V> ? "whole number" : "number",
                       RangeText(range), std::move(unit), std::move(meaning));
  field.read = [member, range](const YamlNode& node, const std::string& path, S& s, Problems& p) {
    ReadValue(node, path, range, s.*member, p);
  };
  field.write = [member](const S& s) { return YamlNode::Plain(ValueText(s.*member)); };
  field.check = [member, range](const S& s, const std::string& path, Problems& p) {
    if (p.Sound(path)) CheckRange(s.*member, path, range, p);
  };
  return WithDefault(std::move(field));
}

template <class S>
Field<S> Flag(std::string name, bool S::*member, std::string meaning) {
  auto field = Leaf<S>(std::move(name), "true or false", "", "", std::move(meaning));
  field.read = [member](const YamlNode& node, const std::string& path, S& s, Problems& p) {
    ReadBool(node, path, s.*member, p);
  };
  field.write = [member](const S& s) { return YamlNode::Plain(s.*member ? "true" : "false"); };
  return WithDefault(std::move(field));
}

template <class S>
Field<S> Text(std::string name, std::string S::*member, TextRule rule, std::string meaning) {
  auto field = Leaf<S>(std::move(name), "text", AllowedText(rule), "", std::move(meaning));
  field.read = [member](const YamlNode& node, const std::string& path, S& s, Problems& p) {
    ReadText(node, path, s.*member, p);
  };
  field.write = [member](const S& s) { return YamlNode::Text(s.*member); };
  field.check = [member, rule](const S& s, const std::string& path, Problems& p) {
    if (p.Sound(path)) CheckText(s.*member, path, rule, p);
  };
  return WithDefault(std::move(field));
}

template <class S, class E>
Field<S> OneOf(std::string name, E S::*member, std::vector<Choice<E>> choices,
               std::string meaning) {
  std::vector<std::string> names;
  for (const Choice<E>& choice : choices) names.emplace_back(choice.name);
  auto field =
      Leaf<S>(std::move(name), "one of", absl::StrJoin(names, ", "), "", std::move(meaning));
  field.read = [member, names, choices](const YamlNode& node, const std::string& path, S& s,
                                        Problems& p) {
    const int index = ReadName(node, path, names, p);
    if (index >= 0) s.*member = choices[index].value;
  };
  field.write = [member, choices](const S& s) {
    for (const Choice<E>& choice : choices) {
      if (choice.value == s.*member) return YamlNode::Text(choice.name);
    }
    return YamlNode();
  };
  return WithDefault(std::move(field));
}

template <class S, class E>
Field<S> OneOf(std::string name, E S::*member, std::string meaning) {
  return OneOf(std::move(name), member,
               std::vector<Choice<E>>(ChoicesOf<E>().begin(), ChoicesOf<E>().end()),
               std::move(meaning));
}

template <class S>
Field<S> Settings(std::string name, std::vector<FieldSetting> S::*member, std::string meaning) {
  auto field =
      Leaf<S>(std::move(name), "map", "recipe fields and their values", "", std::move(meaning));
  field.read = [member](const YamlNode& node, const std::string& path, S& s, Problems& p) {
    ReadSettings(node, path, s.*member, p);
  };
  field.write = [member](const S& s) { return WriteSettings(s.*member); };
  field.check = [member](const S& s, const std::string& path, Problems& p) {
    CheckSettings(s.*member, path, p);
  };
  return WithDefault(std::move(field));
}

// `check` returns what is wrong with the name and the text of an entry, or "".
template <class S>
Field<S> Texts(std::string name, std::vector<NamedText> S::*member, std::string allowed,
               std::string (*check)(const NamedText&), std::string meaning) {
  auto field = Leaf<S>(std::move(name), "map", std::move(allowed), "", std::move(meaning));
  field.read = [member](const YamlNode& node, const std::string& path, S& s, Problems& p) {
    ReadTexts(node, path, s.*member, p);
  };
  field.write = [member](const S& s) { return WriteTexts(s.*member); };
  field.check = [member, check](const S& s, const std::string& path, Problems& p) {
    std::set<std::string> seen;
    if (p.Sound(path)) CheckCount((s.*member).size(), path, {0, kMaxNamedTexts}, p);
    for (const NamedText& entry : s.*member) {
      const std::string inner = absl::StrCat(path, ".", ShownName(entry.name));
      if (!seen.insert(entry.name).second) {
        p.Add(inner, "set twice");
      } else if (const std::string wrong = check(entry); !wrong.empty() && p.Sound(inner)) {
        p.Add(inner, wrong);
      }
    }
  };
  return WithDefault(std::move(field));
}

template <class S, class M>
Field<S> Section(std::string name, M S::*member, const Record<M>& record, std::string meaning) {
  auto field = Leaf<S>(std::move(name), kSectionType, "", "", std::move(meaning));
  const Record<M>* const inner = &record;
  field.read = [member, inner](const YamlNode& node, const std::string& path, S& s, Problems& p) {
    ReadRecord(node, path, *inner, s.*member, p);
  };
  field.write = [member, inner](const S& s) { return WriteRecord(*inner, s.*member); };
  field.check = [member, inner](const S& s, const std::string& path, Problems& p) {
    CheckRecord(*inner, s.*member, path, p);
  };
  field.inside = DocsOf(record, absl::StrCat(field.doc.path, "."));
  field.doc.shorthand = record.shorthand;
  return field;
}

// The part of a list's field that all lists share. `read` reads an entry and returns whether to
// keep it; `check` checks an entry at its path. `count`: bounds of the number of entries.
template <class S, class V, class Read, class Write, class Check>
void MakeList(Field<S>& field, std::vector<V> S::*member, Range<int64_t> count, Read read,
              Write write, Check check) {
  field.read = [member, count, read](const YamlNode& node, const std::string& path, S& s,
                                     Problems& p) {
    if (!IsListOf(node, path, count, p)) return;
    (s.*member).clear();
    for (size_t i = 0; i < node.items.size(); ++i) {
      const std::string at = absl::StrCat(path, "[", i, "]");
      p.SetLine(at, node.items[i].line);
      if (!read(node.items[i], at, (s.*member).emplace_back(), p)) (s.*member).pop_back();
    }
  };
  field.write = [member, write](const S& s) {
    YamlNode list = YamlNode::List();
    for (const V& value : s.*member) list.items.push_back(write(value));
    return list;
  };
  field.check = [member, count, check](const S& s, const std::string& path, Problems& p) {
    if (p.Sound(path)) CheckCount((s.*member).size(), path, count, p);
    for (size_t i = 0; i < (s.*member).size(); ++i) {
      check((s.*member)[i], absl::StrCat(path, "[", i, "]"), p);
    }
  };
}

template <class S, class V>
Field<S> Numbers(std::string name, std::vector<V> S::*member, Range<V> range, Range<int64_t> count,
                 std::string unit, std::string meaning) {
  auto field =
      Leaf<S>(std::move(name), "list",
              absl::StrCat(count.least, " to ", count.most, " numbers in ", RangeText(range)),
              std::move(unit), std::move(meaning));
  MakeList(
      field, member, count,
      [range](const YamlNode& node, const std::string& path, V& value, Problems& p) {
        ReadValue(node, path, range, value, p);
        return true;
      },
      [](V value) { return YamlNode::Plain(ValueText(value)); },
      [range](V value, const std::string& path, Problems& p) {
        if (p.Sound(path)) CheckRange(value, path, range, p);
      });
  return WithDefault(std::move(field));
}

// A list of choices without duplicates, with at least one entry.
template <class S, class E>
Field<S> SomeOf(std::string name, std::vector<E> S::*member, std::string meaning) {
  std::vector<std::string> names;
  for (const Choice<E>& choice : ChoicesOf<E>()) names.emplace_back(choice.name);
  const Range<int64_t> count = {1, static_cast<int64_t>(names.size())};
  auto field = Leaf<S>(std::move(name), "list", absl::StrJoin(names, ", "), "", std::move(meaning));
  MakeList(
      field, member, count,
      [names](const YamlNode& node, const std::string& path, E& value, Problems& p) {
        const int index = ReadName(node, path, names, p);
        if (index >= 0) value = ChoicesOf<E>()[index].value;
        return index >= 0;
      },
      [](E value) { return YamlNode::Text(ChoiceName(value)); },
      [](E, const std::string&, Problems&) {});
  field.check = [member, count_of = field.check](const S& s, const std::string& path, Problems& p) {
    count_of(s, path, p);
    std::set<E> seen;
    for (const E value : s.*member) {
      if (!seen.insert(value).second)
        p.Add(path, std::string(ChoiceName(value)) + " is listed twice");
    }
  };
  return WithDefault(std::move(field));
}

template <class S, class Item>
Field<S> List(std::string name, std::vector<Item> S::*member, const Record<Item>& record,
              Range<int64_t> count, std::string meaning) {
  auto field =
      Leaf<S>(std::move(name), "list", absl::StrCat(count.least, " to ", count.most, " entries"),
              "", std::move(meaning));
  const Record<Item>* const inner = &record;
  MakeList(
      field, member, count,
      [inner](const YamlNode& node, const std::string& path, Item& item, Problems& p) {
        ReadRecord(node, path, *inner, item, p);
        return true;
      },
      [inner](const Item& item) { return WriteRecord(*inner, item); },
      [inner](const Item& item, const std::string& path, Problems& p) {
        CheckRecord(*inner, item, path, p);
      });
  field.inside = DocsOf(record, absl::StrCat(field.doc.path, "[]."));
  field.doc.shorthand = record.shorthand;
  return WithDefault(std::move(field));
}

}  // namespace nibble

#endif  // NIBBLE_JOB_RECORD_H_
