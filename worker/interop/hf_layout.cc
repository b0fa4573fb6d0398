#include "worker/interop/hf_layout.h"

#include <bit>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/formats/bfloat16.h"

namespace nibble {
namespace {

constexpr HfClassInfo kClasses[] = {
    {HfClass::kNemotronH, "nemotron_h", "NemotronHForCausalLM", "backbone.", false},
    {HfClass::kLlama, "llama", "LlamaForCausalLM", "model.", false},
    {HfClass::kArcee, "arcee", "ArceeForCausalLM", "model.", false},
    {HfClass::kGpt2, "gpt2", "GPT2LMHeadModel", "transformer.", true},
};

// The names of a part of a block. `ours` is the name between the block's number and ".weight" or
// ".bias"; if `theirs` has several names, each gets an equal share of the rows.
struct BlockName {
  char mixer;  // the block's symbol; 0: any
  std::string_view ours;
  std::vector<std::string_view> theirs;
};

// Names outside blocks, and the prefix of a block: "layers.", then a number.
struct ClassNames {
  std::string_view embedding, positions, final_norm, block;
  std::vector<BlockName> parts;
};

const ClassNames& NamesOf(HfClass id) {
  static const ClassNames nemotron_h = {
      "embeddings",
      "",
      "norm_f",
      "layers.",
      {{0, "norm", {"norm"}},
       {'*', "attention.qkv", {"mixer.q_proj", "mixer.k_proj", "mixer.v_proj"}},
       {'*', "attention.out", {"mixer.o_proj"}},
       {'-', "mlp.up", {"mixer.up_proj"}},
       {'-', "mlp.down", {"mixer.down_proj"}},
       {'M', "mamba.in_proj", {"mixer.in_proj"}},
       {'M', "mamba.conv", {"mixer.conv1d"}},
       {'M', "mamba.dt_bias", {"mixer.dt_bias"}},
       {'M', "mamba.A_log", {"mixer.A_log"}},
       {'M', "mamba.D", {"mixer.D"}},
       {'M', "mamba.norm", {"mixer.norm"}},
       {'M', "mamba.out_proj", {"mixer.out_proj"}}}};
  static const auto llama_like = [](std::vector<std::string_view> up) {
    return ClassNames{
        "embed_tokens",
        "",
        "norm",
        "layers.",
        {{'*', "norm", {"input_layernorm"}},
         {'*', "attention.qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
         {'*', "attention.out", {"self_attn.o_proj"}},
         {'-', "norm", {"post_attention_layernorm"}},
         {'-', "mlp.up", std::move(up)},
         {'-', "mlp.down", {"mlp.down_proj"}}}};
  };
  static const ClassNames llama = llama_like({"mlp.gate_proj", "mlp.up_proj"});
  static const ClassNames arcee = llama_like({"mlp.up_proj"});
  static const ClassNames gpt2 = {"wte",
                                  "wpe",
                                  "ln_f",
                                  "h.",
                                  {{'*', "norm", {"ln_1"}},
                                   {'*', "attention.qkv", {"attn.c_attn"}},
                                   {'*', "attention.out", {"attn.c_proj"}},
                                   {'-', "norm", {"ln_2"}},
                                   {'-', "mlp.up", {"mlp.c_fc"}},
                                   {'-', "mlp.down", {"mlp.c_proj"}}}};
  switch (id) {
    case HfClass::kNemotronH:
      return nemotron_h;
    case HfClass::kLlama:
      return llama;
    case HfClass::kArcee:
      return arcee;
    case HfClass::kGpt2:
      break;
  }
  return gpt2;
}

bool AlternatesAttentionAndMlp(const std::string& pattern) {
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != (i % 2 == 0 ? '*' : '-')) return false;
  }
  return pattern.size() % 2 == 0;
}

std::string Is(std::string_view field, std::string_view value, std::string_view wanted) {
  return absl::StrCat(std::string(field), " is ", std::string(value), ", not ",
                      std::string(wanted));
}

// Why the class cannot represent the model; empty if it can.
std::string Misfit(HfClass id, const ModelSpec& spec) {
  const bool hybrid = id == HfClass::kNemotronH;
  const bool gpt2 = id == HfClass::kGpt2;
  const Activation activation = gpt2                    ? Activation::kGelu
                                : id == HfClass::kLlama ? Activation::kSwiglu
                                                        : Activation::kSquaredRelu;
  const NormKind norm = gpt2 ? NormKind::kLayerNorm : NormKind::kRmsNorm;
  const Positions positions = hybrid ? Positions::kNone
                              : gpt2 ? Positions::kLearned
                                     : Positions::kRope;
  const bool has_mlp = spec.pattern.find('-') != std::string::npos;
  if (!hybrid && !AlternatesAttentionAndMlp(spec.pattern)) {
    return "pattern is not *- repeated";
  }
  if (has_mlp && spec.activation != activation) {
    return Is("activation", ActivationName(spec.activation), ActivationName(activation));
  }
  if (spec.norm != norm) return Is("norm", NormKindName(spec.norm), NormKindName(norm));
  if (spec.positions != positions) {
    return Is("positions", PositionsName(spec.positions), PositionsName(positions));
  }
  if (hybrid && spec.biases) return "biases are true, not false";
  if (gpt2 && !spec.biases) return "biases are false, not true";
  if (hybrid && spec.tied_head) return "tied_head is true, not false";
  if (gpt2 && spec.kv_heads != spec.heads) {
    return Is("kv_heads", absl::StrCat(spec.kv_heads), absl::StrCat("heads, ", spec.heads));
  }
  if (gpt2 && spec.heads * spec.head_dim != spec.d_model) {
    return Is("heads · head_dim", absl::StrCat(spec.heads * spec.head_dim),
              absl::StrCat("d_model, ", spec.d_model));
  }
  if (!hybrid && !gpt2 && spec.d_model % spec.heads != 0) {
    return absl::StrCat("d_model, ", spec.d_model, ", is not a multiple of heads, ", spec.heads);
  }
  return "";
}

// How a parameter's rows are divided among its `parts` names.
std::vector<int64_t> RowsOf(const ModelSpec& spec, int64_t rows, size_t parts) {
  if (parts == 3) {
    const int64_t q = spec.heads * spec.head_dim;
    const int64_t kv = spec.kv_heads * spec.head_dim;
    return {q, kv, kv};
  }
  return std::vector<int64_t>(parts, rows / static_cast<int64_t>(parts));
}

// "mamba.A_log" and "" of "mamba.A_log"; "mlp.up" and ".weight" of "mlp.up.weight".
std::pair<std::string_view, std::string_view> SplitSuffix(std::string_view name) {
  for (const std::string_view suffix : {".weight", ".bias"}) {
    if (name.ends_with(suffix)) return {name.substr(0, name.size() - suffix.size()), suffix};
  }
  return {name, ""};
}

class LayoutMaker {
 public:
  LayoutMaker(const Outline& outline, HfClass id)
      : outline_(outline), info_(Info(id)), names_(NamesOf(id)) {
    layout_.model_class = id;
  }

  absl::StatusOr<HfModelLayout> Make() {
    for (size_t i = 0; i < outline_.params.size(); ++i) {
      NIBBLE_RETURN_IF_ERROR(AddParam(static_cast<int64_t>(i)));
    }
    return std::move(layout_);
  }

 private:
  absl::Status AddParam(int64_t index) {
    const ParamInfo& param = outline_.params[static_cast<size_t>(index)];
    if (param.block >= 0) return AddBlockParam(index, param);
    const auto [ours, suffix] = SplitSuffix(param.name);
    if (ours == "head") {
      Add(index, absl::StrCat("lm_head", std::string(suffix)), 0, param.shape[0]);
      return absl::OkStatus();
    }
    const std::string_view theirs = ours == "embedding"    ? names_.embedding
                                    : ours == "positions"  ? names_.positions
                                    : ours == "final_norm" ? names_.final_norm
                                                           : "";
    if (theirs.empty()) return NoName(param);
    Add(index, absl::StrCat(std::string(info_.prefix), std::string(theirs), std::string(suffix)), 0,
        param.shape[0]);
    return absl::OkStatus();
  }

  absl::Status AddBlockParam(int64_t index, const ParamInfo& param) {
    const std::string head = absl::StrCat("blocks.", param.block, ".");
    const auto [ours, suffix] = SplitSuffix(std::string_view(param.name).substr(head.size()));
    const char mixer = outline_.spec.pattern[static_cast<size_t>(param.block)];
    // A transformer's layer is two blocks.
    const int64_t layer =
        layout_.model_class == HfClass::kNemotronH ? param.block : param.block / 2;
    for (const BlockName& part : names_.parts) {
      if (part.ours != ours || (part.mixer != 0 && part.mixer != mixer)) continue;
      const std::vector<int64_t> rows = RowsOf(outline_.spec, param.shape[0], part.theirs.size());
      int64_t first = 0;
      for (size_t i = 0; i < part.theirs.size(); ++i) {
        Add(index,
            absl::StrCat(std::string(info_.prefix), std::string(names_.block), layer, ".",
                         std::string(part.theirs[i]), std::string(suffix)),
            first, rows[i]);
        first += rows[i];
      }
      return absl::OkStatus();
    }
    return NoName(param);
  }

  void Add(int64_t index, std::string name, int64_t first_row, int64_t rows) {
    const ParamInfo& param = outline_.params[static_cast<size_t>(index)];
    HfTensor tensor = {
        .name = std::move(name), .param = index, .first_row = first_row, .rows = rows};
    tensor.shape = param.shape;
    tensor.shape[0] = rows;
    tensor.transposed = param.linear >= 0 && info_.transposed_linears;
    if (tensor.transposed) std::swap(tensor.shape[0], tensor.shape[1]);
    // A depthwise convolution has one input channel per filter.
    if (param.name.ends_with(".conv.weight")) tensor.shape = {rows, 1, param.shape[1]};
    layout_.tensors.push_back(std::move(tensor));
  }

  absl::Status NoName(const ParamInfo& param) const {
    return absl::InternalError(
        absl::StrCat(param.name, " has no name in ", std::string(info_.model_type)));
  }

  const Outline& outline_;
  const HfClassInfo& info_;
  const ClassNames& names_;
  HfModelLayout layout_;
};

}  // namespace

std::span<const HfClassInfo> HfClasses() { return kClasses; }

const HfClassInfo& Info(HfClass id) { return kClasses[static_cast<size_t>(id)]; }

const HfClassInfo* FindHfClass(std::string_view model_type) {
  for (const HfClassInfo& info : kClasses) {
    if (info.model_type == model_type) return &info;
  }
  return nullptr;
}

int64_t HfTensor::elements() const {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return n;
}

std::string_view HfTensor::module() const { return SplitSuffix(name).first; }

absl::StatusOr<HfModelLayout> HfLayout(const Outline& outline) {
  std::string reasons;
  for (const HfClassInfo& info : kClasses) {
    const std::string misfit = Misfit(info.id, outline.spec);
    if (misfit.empty()) return LayoutMaker(outline, info.id).Make();
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", std::string(info.model_type), ": ",
                    misfit);
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "model ", outline.spec.name, " fits no model class of Hugging Face (", reasons, ")"));
}

namespace {

// Files are little-endian, and so is every machine this is built for.
static_assert(std::endian::native == std::endian::little);

template <class T>
T Load(const std::byte* bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

bool IsWeightType(FileDType dtype) {
  return dtype == FileDType::kF32 || dtype == FileDType::kBF16 || dtype == FileDType::kF16;
}

float DecodeF16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 127 - 15) << 23) | (fraction << 13));
  }
  // Subnormal: the mantissa times 2^-24.
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

float DecodeElement(FileDType dtype, const std::byte* bytes, size_t index) {
  if (dtype == FileDType::kF32) return Load<float>(bytes, index);
  const auto bits = Load<uint16_t>(bytes, index);
  return dtype == FileDType::kBF16 ? DecodeBf16(bits) : DecodeF16(bits);
}

void AppendElements(FileDType dtype, absl::Span<const float> values, std::vector<std::byte>& out) {
  const size_t begin = out.size();
  if (dtype == FileDType::kF32) {
    out.resize(begin + values.size() * sizeof(float));
    std::memcpy(out.data() + begin, values.data(), values.size() * sizeof(float));
    return;
  }
  out.resize(begin + values.size() * sizeof(uint16_t));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = EncodeBf16(values[i]);
    std::memcpy(out.data() + begin + i * sizeof(bits), &bits, sizeof(bits));
  }
}

}  // namespace nibble
