// SPDX-License-Identifier: Apache-2.0
// One question to a server, and what became of it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tier.h"

namespace neotier::engine::remote {

class Node;

enum class ReplyKind : uint8_t { kNothing, kStatus, kInteger, kBytes, kError, kOther };

struct Reply {
  ReplyKind kind = ReplyKind::kNothing;
  int64_t integer = 0;
  std::string error;  // the server's words, of kError
};

// Owned by who makes it, until done(). On the wire: head, the bytes of body, tail.
class Command {
 public:
  Command() = default;
  virtual ~Command() = default;
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  // Whether it is to end before it has begun; asked when the client is told to sweep.
  virtual bool cancelled() const noexcept { return false; }
  // Before the first byte is sent: what the thread that sends has to prepare. An error ends it.
  virtual Status begin() noexcept { return Status::ok(); }
  // The bytes of a string that is the reply; they are gone when it returns. May be called again where the question is
  // put a second time.
  virtual void take(std::string_view /*bytes*/) {}
  // The last call, from a thread of the client's and without a lock of its own: with the server's reply, or why there
  // is none. May submit others.
  virtual void done(const Status& status, const Reply& reply) = 0;

  std::string name;         // of the value; says which node of a cluster is asked
  std::string head, tail;   // in the server's protocol
  std::vector<Piece> body;  // must stay until done()
  uint64_t expected = 0;    // bytes of the reply, about: how many are asked for at once goes by it
  Node* to = nullptr;       // this node, and no other
  bool nowhere = false;     // nothing is sent: done() is called by a thread of the client's, with kOk

 private:
  friend class Client;
  friend class IoThread;
  friend class CommandQueue;
  Command* next_ = nullptr;
  uint8_t attempts_ = 0, redirects_ = 0, extra_replies_ = 0;
  bool begun_ = false, asking_ = false;
};

// First in, first out; needs no memory.
class CommandQueue {
 public:
  bool empty() const { return !first_; }
  Command* front() const { return first_; }
  Command* last() const { return last_; }
  void push(Command* command) {
    command->next_ = nullptr;
    (last_ ? last_->next_ : first_) = command;
    last_ = command;
  }
  void push_front(Command* command) {
    command->next_ = first_;
    first_ = command;
    if (!last_) last_ = command;
  }
  Command* pop() {
    Command* const command = first_;
    first_ = command->next_;
    if (!first_) last_ = nullptr;
    return command;
  }
  // `other` comes before what is here, and is empty then.
  void prepend(CommandQueue& other) {
    if (other.empty()) return;
    other.last_->next_ = first_;
    if (!last_) last_ = other.last_;
    first_ = other.first_;
    other.first_ = other.last_ = nullptr;
  }
  static Command* after(const Command* command) { return command->next_; }

 private:
  Command *first_ = nullptr, *last_ = nullptr;
};

// "*3\r\n$3\r\nGET ..." of all words; the last one may be announced only, as so many bytes that follow.
std::string words(std::initializer_list<std::string_view> words);
std::string words_before(std::initializer_list<std::string_view> words, uint64_t last_bytes, unsigned more = 0);
std::string word(std::string_view word);

}  // namespace neotier::engine::remote
