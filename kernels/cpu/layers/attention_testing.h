// Shared by the tests of attention: problems, and their results in float64 by definition, each
// number with the sum of the magnitudes of its terms, to which errors are relative.
//
// Ownership: values own their elements. Thread-safety: values.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_TESTING_H_
#define NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/layers/layer_testing.h"
#include "kernels/cpu/layers/panel_gemm.h"
#include "kernels/ops/attention_ops.h"

namespace nibble::cpu {

struct AttentionProblem {
  DType dtype;
  int64_t sequences, length;
  int heads, kv_heads, head_dim;
  bool documents = false;
  int64_t gap = 0;
  double spread = 1;  // of q, k, v

  AttentionShape shape() const {
    return {heads, kv_heads, head_dim, static_cast<float>(1 / std::sqrt(head_dim))};
  }
  int64_t tokens() const { return sequences * length; }
  // Documents of 1 to 150 tokens.
  std::vector<int32_t> DocBegin() const {
    std::vector<int32_t> begin(tokens());
    std::mt19937 random(11);
    for (int64_t s = 0; s < sequences; ++s) {
      int32_t first = 0, left = 0;
      for (int64_t t = 0; t < length; ++t) {
        if (left-- == 0) {
          first = static_cast<int32_t>(t);
          left = static_cast<int32_t>(random() % 150);
        }
        begin[s * length + t] = first;
      }
    }
    return begin;
  }
  TestMatrix Qkv() const {
    return TestMatrix::Random(dtype, tokens(), shape().qkv_cols(), gap, 1, spread);
  }
  TestMatrix Dout() const {
    return TestMatrix::Random(dtype, tokens(), shape().out_cols(), gap, 2);
  }
  TestMatrix Out() const { return {dtype, tokens(), shape().out_cols(), gap}; }

  friend std::ostream& operator<<(std::ostream& out, const AttentionProblem& p) {
    return out << (p.dtype == DType::kF32 ? "f32 " : "bf16 ") << p.sequences << " x " << p.length
               << ", heads " << p.heads << "/" << p.kv_heads << " x " << p.head_dim
               << (p.documents ? ", documents" : "");
  }
};

// Incomplete strips (32), blocks (128) and vectors (16) at every place, groups, several spans.
inline std::vector<AttentionProblem> AttentionProblems(DType dtype) {
  return {
      {dtype, 1, 1, 1, 1, 8},
      {dtype, 2, 5, 2, 1, 16, true, 3},
      {dtype, 1, 33, 4, 2, 24, false, 1},
      {dtype, 2, 130, 2, 2, 64},
      {dtype, 1, 300, 3, 1, 80, true, 7},
      {dtype, 1, 289, 2, 1, 128},
      {dtype, 2, 640, 1, 1, 32, true},
  };
}

// A number, and the sum of the magnitudes of its terms.
struct Sized {
  double value = 0, size = 0;
  void Add(double term) { Add(term, std::abs(term)); }
  void Add(double term, double term_size) {
    value += term;
    size += term_size;
  }
};

// Q, k and v in float64, [tokens, qkv_cols].
inline std::vector<double> Doubles(const TestMatrix& m) {
  std::vector<double> values;
  for (int64_t i = 0; i < m.rows(); ++i) {
    for (int64_t j = 0; j < m.cols(); ++j) values.push_back(m(i, j));
  }
  return values;
}

class AttentionReference {
 public:
  AttentionReference(const AttentionShape& shape, int64_t sequences, int64_t length,
                     const int32_t* doc_begin, std::vector<double> qkv)
      : shape_(shape),
        sequences_(sequences),
        length_(length),
        doc_begin_(doc_begin),
        qkv_(std::move(qkv)) {
    const int64_t tokens = sequences * length;
    out.resize(tokens * shape.out_cols());
    lse.resize(tokens * shape.heads);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int h = 0; h < shape.heads; ++h) ForwardRow(t, h);
    }
  }

  // dqkv of Σ dout · out.
  void Backward(const std::vector<double>& dout) {
    dqkv.assign(qkv_.size(), {});
    for (int64_t t = 0; t < sequences_ * length_; ++t) {
      for (int h = 0; h < shape_.heads; ++h) BackwardRow(t, h, dout);
    }
  }

  std::vector<double>& qkv() { return qkv_; }
  std::vector<Sized> out;   // [tokens, out_cols]
  std::vector<double> lse;  // [heads, tokens]
  std::vector<Sized> dqkv;  // [tokens, qkv_cols]

 private:
  int64_t FirstKey(int64_t t) const {
    return t / length_ * length_ + (doc_begin_ == nullptr ? 0 : doc_begin_[t]);
  }
  int64_t At(int64_t t, int64_t head) const {
    return t * shape_.qkv_cols() + head * shape_.head_dim;
  }
  int64_t KeyHead(int h) const { return shape_.heads + h / (shape_.heads / shape_.kv_heads); }
  int64_t ValueHead(int h) const { return KeyHead(h) + shape_.kv_heads; }

  // Softmax over the keys FirstKey(t) … t.
  std::vector<double> Weights(int64_t t, int h, double* lse_out) const {
    std::vector<double> p;
    for (int64_t j = FirstKey(t); j <= t; ++j) {
      double score = 0;
      for (int c = 0; c < shape_.head_dim; ++c) {
        score += qkv_[At(t, h) + c] * qkv_[At(j, KeyHead(h)) + c];
      }
      p.push_back(score * shape_.scale);
    }
    const double top = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x - top);
    for (double& x : p) x /= sum;
    if (lse_out != nullptr) *lse_out = top + std::log(sum);
    return p;
  }

  void ForwardRow(int64_t t, int h) {
    const std::vector<double> p = Weights(t, h, &lse[h * sequences_ * length_ + t]);
    for (size_t j = 0; j < p.size(); ++j) {
      const double* v = &qkv_[At(FirstKey(t) + j, ValueHead(h))];
      for (int c = 0; c < shape_.head_dim; ++c) {
        out[t * shape_.out_cols() + h * shape_.head_dim + c].Add(p[j] * v[c]);
      }
    }
  }

  void BackwardRow(int64_t t, int h, const std::vector<double>& dout) {
    const std::vector<double> p = Weights(t, h, nullptr);
    const int64_t row = t * shape_.out_cols() + h * shape_.head_dim;
    Sized dot;
    for (int c = 0; c < shape_.head_dim; ++c) dot.Add(dout[row + c] * out[row + c].value);
    for (size_t j = 0; j < p.size(); ++j) {
      const int64_t key = FirstKey(t) + j;
      Sized dp;
      for (int c = 0; c < shape_.head_dim; ++c) {
        const double d = dout[row + c];
        dp.Add(d * qkv_[At(key, ValueHead(h)) + c]);
        dqkv[At(key, ValueHead(h)) + c].Add(p[j] * d);
      }
      const double ds = shape_.scale * p[j] * (dp.value - dot.value);
      const double ds_size = shape_.scale * p[j] * (dp.size + dot.size);
      for (int c = 0; c < shape_.head_dim; ++c) {
        const double q = qkv_[At(t, h) + c], k = qkv_[At(key, KeyHead(h)) + c];
        dqkv[At(t, h) + c].Add(ds * k, ds_size * std::abs(k));
        dqkv[At(key, KeyHead(h)) + c].Add(ds * q, ds_size * std::abs(q));
      }
    }
  }

  const AttentionShape shape_;
  const int64_t sequences_, length_;
  const int32_t* const doc_begin_;
  std::vector<double> qkv_;
};

// actual − expected| <= tolerance · size everywhere, and the gaps between rows are untouched.
inline testing::AssertionResult IsWithin(const TestMatrix& actual,
                                         const std::vector<Sized>& expected, double tolerance) {
  double worst = 0;
  for (int64_t i = 0; i < actual.rows(); ++i) {
    for (int64_t j = 0; j < actual.cols(); ++j) {
      const Sized& e = expected[i * actual.cols() + j];
      const double error = std::abs(actual(i, j) - e.value);
      if (!(error <= tolerance * e.size)) {
        return testing::AssertionFailure()
               << actual(i, j) << " instead of " << e.value << ", off by " << error << " of "
               << e.size << ", at (" << i << ", " << j << ")";
      }
      if (e.size > 0) worst = std::max(worst, error / e.size);
    }
  }
  if (!actual.GapsAreUntouched()) {
    return testing::AssertionFailure() << "something was written between the rows";
  }
  return testing::AssertionSuccess() << "worst " << worst;
}

inline std::string PanelIsaTestName(const testing::TestParamInfo<PanelIsa>& info) {
  std::string name(PanelIsaName(info.param));
  std::erase(name, '-');
  return name;
}

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_TESTING_H_
