// The options of a verb that runs a trained model.
//
// Ownership: the request outlives the verb. Thread-safety: none, as CLI::App.
#ifndef NIBBLE_CLIENT_LOCAL_MODEL_OPTIONS_H_
#define NIBBLE_CLIENT_LOCAL_MODEL_OPTIONS_H_

#include <CLI/CLI.hpp>
#include "client/local/number_check.h"

namespace nibble {

// Fills the request's `from`, `precision`, `threads` and `tokenizer`.
template <class Request>
void AddModelOptions(CLI::App* verb, Request& request) {
  verb->add_option("--from", request.from,
                   "a checkpoint, such as runs/quickstart@300, or an exported model's directory")
      ->required();
  verb->add_option("--precision", request.precision, "of weights and activations")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  verb->add_option("--threads", request.threads, "that compute; 0: one per processor")
      ->check(WholeNumber(0, 4096))
      ->capture_default_str();
  verb->add_option(
      "--tokenizer", request.tokenizer,
      "of a model that does not know its own: bytes, a SentencePiece .model, a tokenizer.json");
}

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_MODEL_OPTIONS_H_
