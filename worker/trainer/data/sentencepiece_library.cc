#include "worker/trainer/data/sentencepiece_library.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nibble::sentencepiece_internal {
namespace {

Error ErrorOf(const sentencepiece::util::Status& status) {
  if (status.ok()) return "";
  const std::string_view message = status.message();
  // "file(line) [condition] explanation", if there is an explanation.
  const size_t place = message.find("] ");
  const std::string explanation(place == std::string_view::npos ? message
                                                                : message.substr(place + 2));
  return explanation.empty() ? std::string(message) : explanation;
}

class Sentences final : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(const std::function<std::string()>& next) : next_(next), value_(next()) {}

  bool done() const override { return value_.empty(); }
  void Next() override { value_ = next_(); }
  const std::string& value() const override { return value_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::function<std::string()>& next_;
  std::string value_;
};

}  // namespace

struct Model::Processor {
  sentencepiece::SentencePieceProcessor processor;
};

Model::Model() : processor_(std::make_unique<Processor>()) {}
Model::~Model() = default;

Error Model::Load(std::string_view serialized) {
  return ErrorOf(processor_->processor.LoadFromSerializedProto(serialized));
}

int Model::pieces() const { return processor_->processor.GetPieceSize(); }
int Model::end_of_sentence() const { return processor_->processor.eos_id(); }

Error Model::Encode(std::string_view text, std::vector<int>& tokens) const {
  return ErrorOf(processor_->processor.Encode(text, &tokens));
}

Error Model::Decode(const std::vector<int>& tokens, std::string& text) const {
  return ErrorOf(processor_->processor.Decode(tokens, &text));
}

Error Train(const std::unordered_map<std::string, std::string>& options,
            const std::function<std::string()>& next, std::string& serialized) {
  Sentences sentences(next);
  return ErrorOf(sentencepiece::SentencePieceTrainer::Train(options, &sentences, &serialized));
}

}  // namespace nibble::sentencepiece_internal
