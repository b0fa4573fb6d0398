// Persistent ordered maps and sets: copies share their nodes. A copy takes constant time and space,
// and a change of one copy copies only the path to the changed entry, so a copy is an immutable
// snapshot.
//
// AVL trees with reference-counted nodes. A node that only one tree can reach is changed in place,
// so filling a tree costs about as much as filling a std::map.
//
// Ownership: copies share nodes and entries; a reference to an entry is valid as long as any copy
// that contains it. Thread-safety: one copy is as thread-safe as a std::map; different copies may
// be read, changed and destroyed in different threads.
#ifndef NIBBLE_SERVER_STATE_PERSISTENT_H_
#define NIBBLE_SERVER_STATE_PERSISTENT_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <utility>

namespace nibble {
namespace persistent {

// A reference-counting pointer; T has `std::atomic<uint32_t> references`, 0 when it is made.
template <class T>
class Counted {
 public:
  Counted() = default;
  explicit Counted(T* made) : at_(made) { Take(); }
  Counted(const Counted& other) : at_(other.at_) { Take(); }
  Counted(Counted&& other) noexcept : at_(std::exchange(other.at_, nullptr)) {}
  Counted& operator=(Counted other) noexcept {
    std::swap(at_, other.at_);
    return *this;
  }
  ~Counted() {
    if (at_ != nullptr && at_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete at_;
  }

  T* get() const { return at_; }
  T& operator*() const { return *at_; }
  T* operator->() const { return at_; }
  explicit operator bool() const { return at_ != nullptr; }
  // True if this is the only pointer, so no other can appear.
  bool unique() const { return at_->references.load(std::memory_order_acquire) == 1; }

 private:
  void Take() {
    if (at_ != nullptr) at_->references.fetch_add(1, std::memory_order_relaxed);
  }

  T* at_ = nullptr;
};

// Entries in the order of KeyOf(entry).
template <class Entry, class KeyOf, class Less>
class Tree {
  struct Shared {
    explicit Shared(Entry made) : entry(std::move(made)) {}
    std::atomic<uint32_t> references = 0;
    const Entry entry;
  };
  struct Node {
    explicit Node(Counted<Shared> made) : shared(std::move(made)) {}
    Node(const Node& other)
        : height(other.height), left(other.left), right(other.right), shared(other.shared) {}
    std::atomic<uint32_t> references = 0;
    int32_t height = 1;
    Counted<Node> left;
    Counted<Node> right;
    Counted<Shared> shared;
  };
  using Link = Counted<Node>;
  // The height of a tree of 2^32 entries, the limit of the 32-bit counts.
  static constexpr size_t kMaxHeight = 48;

 public:
  class const_iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = Entry;
    using difference_type = ptrdiff_t;
    using pointer = const Entry*;
    using reference = const Entry&;

    const_iterator() = default;
    reference operator*() const { return path_[depth_ - 1]->shared->entry; }
    pointer operator->() const { return &**this; }
    const_iterator& operator++() {
      const Node* const at = path_[--depth_];
      Descend(at->right.get());
      return *this;
    }
    const_iterator operator++(int) {
      const_iterator before = *this;
      ++*this;
      return before;
    }
    friend bool operator==(const const_iterator& a, const const_iterator& b) {
      return a.depth_ == 0 || b.depth_ == 0 ? a.depth_ == b.depth_
                                            : a.path_[a.depth_ - 1] == b.path_[b.depth_ - 1];
    }

   private:
    friend class Tree;
    void Push(const Node* node) { path_[depth_++] = node; }
    void Descend(const Node* node) {
      for (; node != nullptr; node = node->left.get()) Push(node);
    }

    // The current node, last, and the ancestors that follow it in order.
    std::array<const Node*, kMaxHeight> path_;
    size_t depth_ = 0;
  };
  using value_type = Entry;
  using iterator = const_iterator;

  Tree() = default;
  Tree(const Tree&) = default;
  Tree(Tree&& other) noexcept
      : root_(std::move(other.root_)), size_(std::exchange(other.size_, 0)) {}
  Tree& operator=(Tree other) noexcept {
    std::swap(root_, other.root_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Tree() = default;

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const_iterator begin() const {
    const_iterator at;
    at.Descend(root_.get());
    return at;
  }
  const_iterator end() const { return {}; }
  // The last entry; null if it is empty.
  const Entry* Last() const {
    const Node* at = root_.get();
    while (at != nullptr && at->right) at = at->right.get();
    return at == nullptr ? nullptr : &at->shared->entry;
  }
  // The first entry whose key is not before `key`.
  template <class K>
  const_iterator lower_bound(const K& key) const {
    return First([&](const auto& at) { return !Less()(at, key); });
  }
  // The first entry whose key is after `key`.
  template <class K>
  const_iterator upper_bound(const K& key) const {
    return First([&](const auto& at) { return Less()(key, at); });
  }
  template <class K>
  const_iterator find(const K& key) const {
    const const_iterator at = lower_bound(key);
    return at == end() || Less()(key, KeyOf()(*at)) ? end() : at;
  }
  template <class K>
  bool contains(const K& key) const {
    return Find(key) != nullptr;
  }
  // Null if there is none.
  template <class K>
  const Entry* Find(const K& key) const {
    const Node* at = root_.get();
    while (at != nullptr) {
      const auto& own = KeyOf()(at->shared->entry);
      if (Less()(key, own)) {
        at = at->left.get();
      } else if (Less()(own, key)) {
        at = at->right.get();
      } else {
        return &at->shared->entry;
      }
    }
    return nullptr;
  }
  // Returns whether there was one.
  template <class K>
  bool Erase(const K& key) {
    if (!contains(key)) return false;
    EraseAt(root_, key);
    --size_;
    return true;
  }

 protected:
  // Replaces an entry with the same key.
  void PutEntry(Entry entry) {
    if (PutAt(root_, Counted<Shared>(new Shared(std::move(entry))))) ++size_;
  }

 private:
  template <class F>
  const_iterator First(F is_behind) const {
    const_iterator at;
    for (const Node* node = root_.get(); node != nullptr;) {
      if (is_behind(KeyOf()(node->shared->entry))) {
        at.Push(node);
        node = node->left.get();
      } else {
        node = node->right.get();
      }
    }
    return at;
  }

  // The node, to be changed: replaced by a copy if another tree shares it. The path to it must
  // already belong to this tree alone.
  static Node& Own(Link& at) {
    if (!at.unique()) at = Link(new Node(*at));
    return *at;
  }
  static int32_t HeightOf(const Link& at) { return at ? at->height : 0; }
  static void SetHeight(Node& node) {
    node.height = 1 + std::max(HeightOf(node.left), HeightOf(node.right));
  }
  // `from`: the side whose child becomes the parent.
  static void Rotate(Link& at, Link Node::*from, Link Node::*to) {
    Own((*at).*from);
    Link up = std::move((*at).*from);
    (*at).*from = std::move((*up).*to);
    SetHeight(*at);
    (*up).*to = std::move(at);
    SetHeight(*up);
    at = std::move(up);
  }
  static void Raise(Link& at, Link Node::*high, Link Node::*low) {
    Node& child = Own((*at).*high);
    if (HeightOf(child.*high) < HeightOf(child.*low)) Rotate((*at).*high, low, high);
    Rotate(at, high, low);
  }
  // Rebalances a node that belongs to this tree alone and whose children are balanced.
  static void Balance(Link& at) {
    const int32_t tilt = HeightOf(at->left) - HeightOf(at->right);
    if (tilt > 1) {
      Raise(at, &Node::left, &Node::right);
    } else if (tilt < -1) {
      Raise(at, &Node::right, &Node::left);
    } else {
      SetHeight(*at);
    }
  }
  // Returns whether the tree grew.
  static bool PutAt(Link& at, Counted<Shared> made) {
    if (!at) {
      at = Link(new Node(std::move(made)));
      return true;
    }
    Node& node = Own(at);
    const auto& key = KeyOf()(made->entry);
    const auto& own = KeyOf()(node.shared->entry);
    bool added = false;
    if (Less()(key, own)) {
      added = PutAt(node.left, std::move(made));
    } else if (Less()(own, key)) {
      added = PutAt(node.right, std::move(made));
    } else {
      node.shared = std::move(made);
      return false;
    }
    Balance(at);
    return added;
  }
  // The key must be present.
  template <class K>
  static void EraseAt(Link& at, const K& key) {
    Node& node = Own(at);
    const auto& own = KeyOf()(node.shared->entry);
    if (Less()(key, own)) {
      EraseAt(node.left, key);
    } else if (Less()(own, key)) {
      EraseAt(node.right, key);
    } else if (!node.left || !node.right) {
      Link rest = std::move(node.left ? node.left : node.right);
      at = std::move(rest);
      return;
    } else {
      node.shared = TakeFirst(node.right);
    }
    Balance(at);
  }
  static Counted<Shared> TakeFirst(Link& at) {
    Node& node = Own(at);
    if (!node.left) {
      Counted<Shared> first = std::move(node.shared);
      Link rest = std::move(node.right);
      at = std::move(rest);
      return first;
    }
    Counted<Shared> first = TakeFirst(node.left);
    Balance(at);
    return first;
  }

  Link root_;
  size_t size_ = 0;
};

struct FirstOf {
  template <class Pair>
  const auto& operator()(const Pair& pair) const {
    return pair.first;
  }
};

}  // namespace persistent

template <class Key, class Value, class Less = std::less<>>
class PersistentMap
    : public persistent::Tree<std::pair<const Key, Value>, persistent::FirstOf, Less> {
 public:
  // Replaces a present value.
  void Put(Key key, Value value) { this->PutEntry({std::move(key), std::move(value)}); }
};

template <class Key, class Less = std::less<>>
class PersistentSet : public persistent::Tree<Key, std::identity, Less> {
 public:
  void Insert(Key key) { this->PutEntry(std::move(key)); }
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_STATE_PERSISTENT_H_
