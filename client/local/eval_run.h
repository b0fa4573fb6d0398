// What `nibble eval` does: opens the model, evaluates it, puts the results as a table or JSON.
//
// Ownership: none kept. Thread-safety: calls are independent.
#ifndef NIBBLE_CLIENT_LOCAL_EVAL_RUN_H_
#define NIBBLE_CLIENT_LOCAL_EVAL_RUN_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/infer/eval/multiple_choice.h"
#include "worker/infer/weight_opener.h"

namespace nibble {

struct EvalRequest {
  std::string from;
  std::string tokenizer;          // as ChooseTokenizer; empty: the model's own
  std::vector<std::string> data;  // token files; or
  std::string choices;            // a file of questions

  // Of token data.
  int64_t sequence = 0;  // 0: 2048, or the model's learned positions where these are fewer
  int64_t max_windows = 0;
  bool reset_at_documents = true;
  int token_width = 0;        // of files of nothing but tokens
  int64_t document_end = -1;  // of files without an index of documents

  ChoiceOptions choice_options;
  bool answers = false;  // in JSON, every question's

  std::string precision = "bf16";
  int threads = 0;
  bool json = false;
};

// Takes one line about what goes on, without its end.
using EvalSay = std::function<void(std::string_view line)>;

// The text for stdout. Errors are those of opening, of ChooseTokenizer, EvaluateTokens and
// AnswerFile; InvalidArgument where data was made by another tokenizer than the model's.
absl::StatusOr<std::string> RunEval(const EvalRequest& request, const WeightOpener& open,
                                    const EvalSay& say);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_EVAL_RUN_H_
