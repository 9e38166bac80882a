// SPDX-License-Identifier: Apache-2.0
// A list whose links lie in its members. Joining, leaving and being asked whether one is in cost the same however long
// it is, and need no memory, so that none of them can fail. A member is in one list for each of its tags; the list does
// not own it.
#pragma once

#include <cstddef>

namespace neotier::engine {

template <typename T, typename Tag>
struct Linked {
  T* before = nullptr;
  T* after = nullptr;
  bool in_list = false;
};

template <typename T, typename Tag>
class LinkedList {
 public:
  LinkedList() = default;
  LinkedList(const LinkedList&) = delete;
  LinkedList& operator=(const LinkedList&) = delete;

  bool empty() const { return first_ == nullptr; }
  size_t size() const { return size_; }
  T* front() const { return first_; }
  T* back() const { return last_; }
  static T* after(const T* member) { return link(member).after; }
  static bool has(const T* member) { return link(member).in_list; }

  void push_back(T* member) {
    Link& own = link(member);
    own = {last_, nullptr, true};
    (last_ ? link(last_).after : first_) = member;
    last_ = member;
    size_++;
  }
  // It must be in this one.
  void erase(T* member) {
    Link& own = link(member);
    (own.before ? link(own.before).after : first_) = own.after;
    (own.after ? link(own.after).before : last_) = own.before;
    own = {};
    size_--;
  }
  T* pop_front() {
    T* const member = first_;
    erase(member);
    return member;
  }
  // Takes all of the other's, behind its own.
  void take(LinkedList& other) {
    if (!other.first_) return;
    link(other.first_).before = last_;
    (last_ ? link(last_).after : first_) = other.first_;
    last_ = other.last_;
    size_ += other.size_;
    other.first_ = other.last_ = nullptr;
    other.size_ = 0;
  }

 private:
  using Link = Linked<T, Tag>;
  static Link& link(T* member) { return *member; }
  static const Link& link(const T* member) { return *member; }

  T* first_ = nullptr;
  T* last_ = nullptr;
  size_t size_ = 0;
};

}  // namespace neotier::engine
