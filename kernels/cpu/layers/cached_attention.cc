#include "kernels/cpu/layers/cached_attention.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cpu/layers/attention_strip.h"

namespace nibble::cpu {
namespace {

// From this number of tokens of a sequence on, the matrix units are faster although the cache is
// packed first.
constexpr int64_t kStripRows = 5;
// Tokens per task that appends to the caches.
constexpr int64_t kAppendRows = 16;

template <class T>
class CachedAttention {
 public:
  CachedAttention(const AttentionForward& request, const AttentionEngine<T>& engine,
                  const DecodeAttentionKernels<T>& decode, ThreadPool& pool, Scratch<char>& scratch)
      : request_(request),
        shape_(request.shape),
        group_(shape_.heads / shape_.kv_heads),
        strip_(shape_, engine),
        decode_(decode),
        pool_(pool),
        scratch_(scratch) {}

  void Run() {
    Append();
    RunSingleQueries();
    for (size_t i = 0; i < request_.layout.continued.size(); ++i) {
      if (PieceAt(i).tokens.rows >= kStripRows) RunStrips(PieceAt(i));
    }
  }

 private:
  // A continuation and its cache.
  struct Piece {
    Continuation tokens;
    T* keys;    // [kv_heads, head_stride]
    T* values;  // [kv_heads, head_stride]
    int64_t head_stride;
  };
  // One query token; its tasks are [first_task, first_task + kv_heads · blocks), key heads
  // outermost.
  struct Query {
    Piece piece;
    int64_t row;  // of the request
    int64_t keys;
    int64_t blocks;
    int64_t first_task;
  };
  // Results by task: [group], [group], [group, head_dim]. And [threads, DecodeRoom].
  struct Partial {
    float *top, *sum, *out, *room;
  };

  Piece PieceAt(size_t i) const {
    const KvCache& cache = request_.caches[i];
    return {.tokens = request_.layout.continued[i],
            .keys = static_cast<T*>(cache.keys),
            .values = static_cast<T*>(cache.values),
            .head_stride = cache.capacity * shape_.head_dim};
  }
  const T* Qkv(int64_t row, int64_t col) const {
    return static_cast<const T*>(request_.qkv.data) + row * request_.qkv.stride + col;
  }
  T* Out(int64_t row, int64_t col) const {
    return static_cast<T*>(request_.out.data) + row * request_.out.stride + col;
  }

  void Append() const {
    struct Rows {
      Piece piece;
      int64_t begin, end;
    };
    std::vector<Rows> tasks;
    for (size_t i = 0; i < request_.layout.continued.size(); ++i) {
      const Piece piece = PieceAt(i);
      for (int64_t begin = 0; begin < piece.tokens.rows; begin += kAppendRows) {
        tasks.push_back({piece, begin, std::min(begin + kAppendRows, piece.tokens.rows)});
      }
    }
    const int64_t dim = shape_.head_dim, values = int64_t{shape_.kv_heads} * dim;
    const size_t bytes = static_cast<size_t>(dim) * sizeof(T);
    pool_.ParallelFor(static_cast<int64_t>(tasks.size()), [&](int64_t i, int) {
      const Rows& rows = tasks[static_cast<size_t>(i)];
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        const T* k = Qkv(rows.piece.tokens.row + r, shape_.out_cols());
        for (int64_t h = 0; h < shape_.kv_heads; ++h) {
          const int64_t to = h * rows.piece.head_stride + (rows.piece.tokens.position + r) * dim;
          std::memcpy(rows.piece.keys + to, k + h * dim, bytes);
          std::memcpy(rows.piece.values + to, k + values + h * dim, bytes);
        }
      }
    });
  }

  // All continuations of few rows, together.
  void RunSingleQueries() {
    std::vector<Query> queries;
    int64_t tasks = 0;
    bool divided = false;
    for (size_t i = 0; i < request_.layout.continued.size(); ++i) {
      const Piece piece = PieceAt(i);
      if (piece.tokens.rows >= kStripRows) continue;
      for (int64_t r = 0; r < piece.tokens.rows; ++r) {
        const int64_t keys = piece.tokens.position + r + 1;
        const int64_t blocks = (keys + kDecodeKeys - 1) / kDecodeKeys;
        queries.push_back({piece, piece.tokens.row + r, keys, blocks, tasks});
        tasks += blocks * shape_.kv_heads;
        divided = divided || blocks > 1;
      }
    }
    if (queries.empty()) return;
    const auto take = [&](Carver carver) {
      partial_.room = carver.Take<float>(pool_.threads() * DecodeRoom(group_, shape_.head_dim));
      partial_.top = carver.Take<float>(tasks * group_);
      partial_.sum = carver.Take<float>(tasks * group_);
      partial_.out = carver.Take<float>(tasks * group_ * shape_.head_dim);
      return carver.used();
    };
    take(Carver(scratch_.Get(take(Carver(nullptr)))));
    pool_.ParallelFor(tasks, [&](int64_t task, int thread) {
      const auto after =
          std::upper_bound(queries.begin(), queries.end(), task,
                           [](int64_t t, const Query& q) { return t < q.first_task; });
      const Query& query = *(after - 1);
      RunBlock(query, task, thread);
      if (query.blocks == 1) Combine(query, task - query.first_task);
    });
    if (!divided) return;
    pool_.ParallelFor(static_cast<int64_t>(queries.size()) * shape_.kv_heads, [&](int64_t i, int) {
      const Query& query = queries[static_cast<size_t>(i / shape_.kv_heads)];
      if (query.blocks > 1) Combine(query, i % shape_.kv_heads);
    });
  }

  void RunBlock(const Query& query, int64_t task, int thread) const {
    const int64_t dim = shape_.head_dim;
    const int64_t kv_head = (task - query.first_task) / query.blocks;
    const int64_t begin = (task - query.first_task) % query.blocks * kDecodeKeys;
    const int64_t at = kv_head * query.piece.head_stride + begin * dim;
    decode_.block({.heads = static_cast<int>(group_),
                   .head_dim = shape_.head_dim,
                   .keys = std::min(kDecodeKeys, query.keys - begin),
                   .scale = shape_.scale,
                   .q = Qkv(query.row, kv_head * group_ * dim),
                   .k = query.piece.keys + at,
                   .v = query.piece.values + at,
                   .room = partial_.room + thread * DecodeRoom(group_, dim),
                   .top = partial_.top + task * group_,
                   .sum = partial_.sum + task * group_,
                   .out = partial_.out + task * group_ * dim});
  }

  // Combines the blocks of the query heads of one key head.
  void Combine(const Query& query, int64_t kv_head) const {
    const int64_t dim = shape_.head_dim;
    const int64_t task = query.first_task + kv_head * query.blocks;
    for (int64_t member = 0; member < group_; ++member) {
      decode_.finish({.blocks = query.blocks,
                      .head_dim = shape_.head_dim,
                      .top = partial_.top + task * group_ + member,
                      .sum = partial_.sum + task * group_ + member,
                      .top_stride = group_,
                      .out = partial_.out + (task * group_ + member) * dim,
                      .out_stride = group_ * dim,
                      .to = Out(query.row, (kv_head * group_ + member) * dim)});
    }
  }

  void RunStrips(const Piece& piece) {
    const int64_t keys = piece.tokens.position + piece.tokens.rows;
    const int64_t blocks = (keys + kKeyBlock - 1) / kKeyBlock;
    std::vector<KeyPanels<T>> panels(static_cast<size_t>(shape_.kv_heads));
    std::vector<StripMemory<T>> memory(static_cast<size_t>(pool_.threads()));
    float* lse = nullptr;  // [threads, kStrip], not used
    const auto take = [&](Carver carver) {
      for (KeyPanels<T>& p : panels) p = strip_.TakePanels(carver, blocks);
      for (StripMemory<T>& m : memory) m = strip_.TakeMemory(carver);
      lse = carver.Take<float>(int64_t{pool_.threads()} * kStrip);
      return carver.used();
    };
    take(Carver(scratch_.Get(take(Carver(nullptr)))));
    const auto keys_of = [&](int64_t block) {
      return static_cast<int>(std::min<int64_t>(kKeyBlock, keys - block * kKeyBlock));
    };
    pool_.ParallelFor(shape_.kv_heads * blocks, [&](int64_t i, int) {
      const int64_t kv_head = i / blocks, block = i % blocks;
      const int64_t from = kv_head * piece.head_stride + block * kKeyBlock * shape_.head_dim;
      strip_.Pack(piece.keys + from, piece.values + from, shape_.head_dim, keys_of(block), block,
                  panels[static_cast<size_t>(kv_head)]);
    });
    const int64_t strips = (piece.tokens.rows + kStrip - 1) / kStrip;
    pool_.ParallelFor(shape_.heads * strips, [&](int64_t i, int thread) {
      const PanelThreadScope scope;
      const StripMemory<T>& m = memory[static_cast<size_t>(thread)];
      const int64_t head = i / strips;
      // Longest first.
      const int64_t first_row = (strips - 1 - i % strips) * kStrip;
      const int rows = static_cast<int>(std::min<int64_t>(kStrip, piece.tokens.rows - first_row));
      const int64_t first_query = piece.tokens.position + first_row;
      const int64_t row = piece.tokens.row + first_row, column = head * shape_.head_dim;
      strip_.Begin(Qkv(row, column), request_.qkv.stride, rows, m);
      for (int64_t first_key = 0; first_key < first_query + rows; first_key += kKeyBlock) {
        const int64_t visible = std::min<int64_t>(kKeyBlock, first_query + rows - first_key);
        strip_.Add({.doc_begin = nullptr,
                    .first_query = first_query,
                    .first_key = first_key,
                    .rows = rows,
                    .from = 0,
                    .to = static_cast<int>(RoundUp(visible, kPanelDepth))},
                   keys_of(first_key / kKeyBlock), first_key == 0,
                   panels[static_cast<size_t>(head / group_)], m);
      }
      float amax = 0;
      strip_.Finish(rows, m, Out(row, column), request_.out.stride, lse + thread * kStrip, amax);
    });
  }

  const AttentionForward& request_;
  const AttentionShape& shape_;
  const int64_t group_;  // query heads per key head
  const AttentionStrip<T> strip_;
  const DecodeAttentionKernels<T>& decode_;
  ThreadPool& pool_;
  Scratch<char>& scratch_;
  Partial partial_ = {};
};

}  // namespace

template <class T>
void RunCachedAttention(const AttentionForward& request, const AttentionEngine<T>& engine,
                        const DecodeAttentionKernels<T>& decode, ThreadPool& pool,
                        Scratch<char>& scratch) {
  CachedAttention<T>(request, engine, decode, pool, scratch).Run();
}

template void RunCachedAttention(const AttentionForward&, const AttentionEngine<float>&,
                                 const DecodeAttentionKernels<float>&, ThreadPool&, Scratch<char>&);
template void RunCachedAttention(const AttentionForward&, const AttentionEngine<uint16_t>&,
                                 const DecodeAttentionKernels<uint16_t>&, ThreadPool&,
                                 Scratch<char>&);

}  // namespace nibble::cpu
