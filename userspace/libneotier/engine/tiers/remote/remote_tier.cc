// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/remote/remote_tier.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace neotier::engine {

using remote::Command;
using remote::Header;
using remote::Identity;
using remote::kGrainBytes;
using remote::kHeaderBytes;
using remote::kPartBytes;
using remote::Reply;
using remote::ReplyKind;
using remote::Sums;

namespace {

constexpr size_t kMostJobs = 1024;
// Entries that are asked for at once, and such that came late.
constexpr size_t kMostAsked = 4096, kMostLate = 65536;
// Names that are tried for one whose servers answer.
constexpr int kTries = 8;
// Deletes an entry where it is still the one that this host wrote: another may have stored the object since.
constexpr std::string_view kDeleteOwn =
    "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('UNLINK',KEYS[1]) end return 0";

// The pieces of [offset, offset + bytes).
std::vector<Piece> slice(std::span<const Piece> pieces, uint64_t offset, uint64_t bytes) {
  std::vector<Piece> some;
  for (const Piece& piece : pieces) {
    if (offset >= piece.bytes) {
      offset -= piece.bytes;
      continue;
    }
    const uint64_t length = std::min(piece.bytes - offset, bytes);
    if (length > 0) some.push_back({piece.data + offset, length});
    bytes -= length;
    offset = 0;
    if (bytes == 0) break;
  }
  return some;
}

// Where the bytes of some pieces come from or go to, one after the other.
class Cursor {
 public:
  explicit Cursor(std::span<const Piece> pieces) : pieces_(pieces) {}
  void fill(const char* bytes, uint64_t size) {
    walk(size, [&](std::byte* at, uint64_t some) {
      std::memcpy(at, bytes, some);
      bytes += some;
    });
  }
  void copy_to(std::byte* to, uint64_t size) {
    walk(size, [&](const std::byte* at, uint64_t some) {
      std::memcpy(to, at, some);
      to += some;
    });
  }

 private:
  template <typename Each>
  void walk(uint64_t size, Each each) {
    while (size > 0) {
      const Piece& piece = pieces_[index_];
      const uint64_t some = std::min(size, piece.bytes - offset_);
      if (some > 0) each(piece.data + offset_, some);
      size -= some;
      offset_ += some;
      if (offset_ == piece.bytes) {
        index_++;
        offset_ = 0;
      }
    }
  }
  std::span<const Piece> pieces_;
  size_t index_ = 0;
  uint64_t offset_ = 0;
};

// A word to a server of which nobody waits for the answer: what it should delete goes by its time to live otherwise.
class Word : public Command {
 public:
  explicit Word(std::atomic<size_t>& count) : count_(count) { count_++; }
  ~Word() override { count_--; }
  void done(const Status&, const Reply&) override { delete this; }

 private:
  std::atomic<size_t>& count_;
};

uint64_t charge(uint64_t bytes) {
  const Identity identity{{}, 0, bytes};
  return bytes + uint64_t{identity.parts()} * kHeaderBytes;
}

}  // namespace

struct RemoteTier::Object {
  struct Part {
    bool written = false;
    bool writing = false;
    std::unique_ptr<Sums> sums;                   // of what was written or read last; a hint
    WritePart *first = nullptr, *last = nullptr;  // that wait until the one before has ended
  };
  Identity identity;
  bool own = true;
  bool published = false;
  uint32_t unwritten = 0;
  std::vector<Part> parts;
};

struct RemoteTier::Job {
  Job(RemoteTier& its_tier, Transfer& its_transfer)
      : tier(its_tier), transfer(its_transfer), object(its_tier.object_of(its_transfer.extent)) {}

  enum class State : uint8_t { kWaiting, kBegun, kCancelled };
  RemoteTier& tier;
  Transfer& transfer;
  std::shared_ptr<Object> object;
  std::atomic<State> state{State::kWaiting};
  std::atomic<bool> unwanted{false};  // a read, of which some may have been sent
  std::atomic<uint32_t> left{0};
  Status status;  // the first that is none of success

  bool begin() {
    State waiting = State::kWaiting;
    return state.compare_exchange_strong(waiting, State::kBegun) || waiting == State::kBegun;
  }
};

// A part of a transfer, in one part of the extent.
class RemoteTier::PartOp : public Command {
 public:
  PartOp(Job& job, uint32_t part, uint64_t offset, uint64_t bytes, std::vector<Piece> pieces)
      : job_(job), part_(part), offset_(offset), bytes_(bytes), pieces_(std::move(pieces)) {
    name = part_name(job.tier.space_, identity(), part);
  }

 protected:
  const Identity& identity() const { return job_.object->identity; }
  Object::Part& part() { return job_.object->parts[part_]; }
  uint32_t part_bytes() const { return identity().part_bytes(part_); }
  bool whole() const { return offset_ == 0 && bytes_ == part_bytes(); }
  Status corrupt(const char* what) const {
    return status_of(Code::kCorrupt, [&] { return fmt::format("{}: {}: {}", job_.tier.info_.name, name, what); });
  }
  Status missing() const {
    return status_of(Code::kNotFound, [&] {
      return fmt::format("{}: the server does not have {} any more", job_.tier.info_.name, name);
    });
  }

  Job& job_;
  const uint32_t part_;
  const uint64_t offset_, bytes_;  // in the part
  const std::vector<Piece> pieces_;
  Status found_;
};

// Reads a whole part with its header; or the grains that it needs, by sums that are known or asked for first. Where the
// part is written meanwhile the two may not belong together: then it reads the whole, which is of one moment.
class RemoteTier::ReadPart : public PartOp {
 public:
  ReadPart(Job& job, uint32_t part, uint64_t offset, uint64_t bytes, std::vector<Piece> pieces)
      : PartOp(job, part, offset, bytes, std::move(pieces)) {
    const Object::Part& mine = this->part();
    if (whole() || mine.writing) {
      ask_whole();
    } else if (mine.sums) {
      sums_ = *mine.sums;
      ask_grains();
    } else {
      ask_header();
    }
  }

  bool cancelled() const noexcept override { return job_.unwanted.load(); }
  Status begin() noexcept override {
    job_.begin();
    return job_.unwanted.load() ? Status(Code::kCancelled, "") : Status::ok();
  }

  void take(std::string_view bytes) override {
    switch (step_) {
      case Step::kWhole:
        return take_whole(bytes);
      case Step::kHeader:
        if (const std::optional<Sums> sums = read_header(job_.tier.space_, identity(), part_, bytes)) {
          sums_ = *sums;
          found_ = Status::ok();
        } else {
          found_ = bytes.empty() ? missing() : corrupt("its header is not what was written");
        }
        return;
      case Step::kGrains:
        return take_grains(bytes);
    }
  }

  void done(const Status& status, const Reply& reply) override {
    Status result = status;
    if (status.is_ok()) {
      result = reply.kind == ReplyKind::kBytes     ? std::move(found_)
               : reply.kind == ReplyKind::kNothing ? missing()
                                                   : corrupt("it is no string");
    }
    // Of a value that is short, and of none, a range is the same.
    if (step_ == Step::kGrains && (result.code() == Code::kCorrupt || result.code() == Code::kNotFound)) {
      ask_whole();
      return job_.tier.client_->submit(this);
    }
    if (step_ == Step::kHeader && result.is_ok()) {
      ask_grains();
      return job_.tier.client_->submit(this);
    }
    RemoteTier& tier = job_.tier;
    {
      const std::lock_guard lock(tier.mutex_);
      Object::Part& mine = part();
      if (result.code() == Code::kNotFound && !mine.written) {
        result = Status::ok();  // what a read finds before the first write is not said
        for (const Piece& piece : pieces_) std::memset(piece.data, 0, piece.bytes);
      } else if (result.is_ok() && !mine.sums && !mine.writing) {
        mine.sums.reset(new (std::nothrow) Sums(sums_));
      }
    }
    Job& job = job_;
    delete this;
    tier.finish(job, result);
  }

 private:
  enum class Step { kWhole, kHeader, kGrains };

  void ask_whole() {
    step_ = Step::kWhole;
    head = remote::words({"GET", name});
    expected = kHeaderBytes + uint64_t{part_bytes()};
  }
  void ask_header() {
    step_ = Step::kHeader;
    head = remote::words({"GETRANGE", name, "0", std::to_string(kHeaderBytes - 1)});
    expected = kHeaderBytes;
  }
  void ask_grains() {
    step_ = Step::kGrains;
    first_ = static_cast<uint32_t>(offset_ / kGrainBytes);
    end_ = std::min<uint64_t>((offset_ + bytes_ + kGrainBytes - 1) / kGrainBytes * kGrainBytes, part_bytes());
    const uint64_t begin = kHeaderBytes + uint64_t{first_} * kGrainBytes;
    head = remote::words({"GETRANGE", name, std::to_string(begin), std::to_string(kHeaderBytes + end_ - 1)});
    expected = end_ - uint64_t{first_} * kGrainBytes;
  }

  // Bytes of the part from grain `first` on are those that were written.
  bool right(std::string_view bytes, uint32_t first) const {
    for (uint64_t at = 0, grain = first; at < bytes.size(); at += kGrainBytes, grain++) {
      if (XXH3_64bits(bytes.data() + at, std::min<uint64_t>(kGrainBytes, bytes.size() - at)) != sums_[grain])
        return false;
    }
    return true;
  }
  void take_whole(std::string_view bytes) {
    const std::optional<Sums> sums = read_header(job_.tier.space_, identity(), part_, bytes);
    if (!sums || bytes.size() != kHeaderBytes + uint64_t{part_bytes()}) {
      found_ = corrupt("it is not what was written");
      return;
    }
    sums_ = *sums;
    bytes.remove_prefix(kHeaderBytes);
    // Grain by grain, while it is near.
    Cursor into(pieces_);
    for (uint64_t at = offset_ / kGrainBytes * kGrainBytes; at < offset_ + bytes_; at += kGrainBytes) {
      const std::string_view grain = bytes.substr(at, kGrainBytes);
      if (XXH3_64bits(grain.data(), grain.size()) != sums_[at / kGrainBytes]) {
        found_ = corrupt("its bytes are not those that were written");
        return;
      }
      const uint64_t begin = std::max(at, offset_), end = std::min(at + grain.size(), offset_ + bytes_);
      into.fill(grain.data() + (begin - at), end - begin);
    }
    found_ = Status::ok();
  }
  void take_grains(std::string_view bytes) {
    const uint64_t begin = uint64_t{first_} * kGrainBytes;
    if (bytes.empty()) {
      found_ = missing();
    } else if (bytes.size() != end_ - begin || !right(bytes, first_)) {
      found_ = corrupt("its bytes are not those that were written");
    } else {
      found_ = Status::ok();
      Cursor(pieces_).fill(bytes.data() + (offset_ - begin), bytes_);
    }
  }

  Step step_ = Step::kWhole;
  Sums sums_{};
  uint32_t first_ = 0;
  uint64_t end_ = 0;
};

// Writes a whole part; or reads it, changes it, and writes it whole. Writes of one part come one after the other, so
// that none undoes another; those of pieces that wait together are one.
class RemoteTier::WritePart : public PartOp {
 public:
  WritePart(Job& job, uint32_t part, uint64_t offset, uint64_t bytes, std::vector<Piece> pieces)
      : PartOp(job, part, offset, bytes, std::move(pieces)) {
    const std::string ttl = std::to_string(job.tier.options_.ttl_s);
    const bool ends = job.tier.options_.ttl_s > 0;
    set_head_ = remote::words_before({"SET", name}, kHeaderBytes + uint64_t{part_bytes()}, ends ? 2 : 0);
    header_at_ = set_head_.size();
    set_head_.append(kHeaderBytes, '\0');
    set_tail_ = ends ? "\r\n" + remote::word("EX") + remote::word(ttl) : "\r\n";
    if (!whole()) get_head_ = remote::words({"GET", name});
    body.reserve(std::max<size_t>(1, pieces_.size()));
  }

  uint32_t number() const { return part_; }
  bool is_whole() const { return whole(); }
  // With the tier's lock: it is this one's turn. False where it is not wanted any more.
  bool wanted() { return whole() ? !cancelled() : job_.begin(); }
  // Instead of its turn.
  void give_up() {
    Job& job = job_;
    delete this;
    job.tier.finish(job, Status(Code::kCancelled, ""));
  }

  // Without the lock. `others` are pieces of this part, which are written with it.
  void go() {
    if (whole()) return write(pieces_);
    scratch_.reset(new (std::nothrow) std::byte[part_bytes()]);
    if (!scratch_) return end(no_memory());
    bool there = false;
    {
      const std::lock_guard lock(job_.tier.mutex_);
      there = part().written;
    }
    if (!there) {
      std::memset(scratch_.get(), 0, part_bytes());
      return change();
    }
    reading_ = true;
    head.swap(get_head_);
    expected = kHeaderBytes + uint64_t{part_bytes()};
    job_.tier.client_->submit(this);
  }

  bool cancelled() const noexcept override { return job_.state.load() == Job::State::kCancelled; }
  Status begin() noexcept override {
    if (!job_.begin()) return {Code::kCancelled, ""};
    if (reading_) return Status::ok();
    sums_ = remote::sums_of(body, part_bytes());
    const Header header = make_header(job_.tier.space_, identity(), part_, sums_);
    std::memcpy(head.data() + header_at_, header.data(), header.size());
    return Status::ok();
  }

  void take(std::string_view bytes) override {
    if (!reading_) return;
    const std::optional<Sums> sums = read_header(job_.tier.space_, identity(), part_, bytes);
    if (!sums || bytes.size() != kHeaderBytes + uint64_t{part_bytes()}) {
      found_ = corrupt("it is not what was written");
      return;
    }
    std::memcpy(scratch_.get(), bytes.data() + kHeaderBytes, part_bytes());
    const Piece piece{scratch_.get(), part_bytes()};
    found_ = remote::sums_of({&piece, 1}, part_bytes()) == *sums ? Status::ok()
                                                                 : corrupt("its bytes are not those that were written");
  }

  void done(const Status& status, const Reply& reply) override {
    if (!reading_) {
      if (status.is_ok() && reply.kind != ReplyKind::kStatus) return end(corrupt("no word of its being stored"));
      return end(status);
    }
    reading_ = false;
    if (!status.is_ok()) return end(status);
    if (reply.kind != ReplyKind::kBytes)
      return end(reply.kind == ReplyKind::kNothing ? missing() : corrupt("no string"));
    if (!found_.is_ok()) return end(Status(found_));
    change();
  }

  WritePart* next = nullptr;    // in the part's list
  WritePart* others = nullptr;  // written with this one

 private:
  void change() {
    for (WritePart* one = this; one; one = one->others)
      Cursor(one->pieces_).copy_to(scratch_.get() + one->offset_, one->bytes_);
    const Piece piece{scratch_.get(), part_bytes()};
    write({&piece, 1});
  }
  void write(std::span<const Piece> pieces) {
    body.assign(pieces.begin(), pieces.end());
    head.swap(set_head_);
    tail.swap(set_tail_);
    expected = 16;
    job_.tier.client_->submit(this);
  }
  // A status that is none of this one's members: they go before it is told.
  void end(const Status& status) {
    RemoteTier& tier = job_.tier;
    const std::shared_ptr<Object> object = job_.object;
    const uint32_t part = part_;
    tier.written(*object, part, sums_, status);
    for (WritePart *one = this, *other = nullptr; one; one = other) {
      other = one->others;
      Job& job = one->job_;
      delete one;
      tier.finish(job, status);
    }
    tier.next_write(*object, part);
  }

  std::string set_head_, set_tail_, get_head_;
  size_t header_at_ = 0;
  std::unique_ptr<std::byte[]> scratch_;
  bool reading_ = false;
  Sums sums_{};
};

// A transfer that cannot be; it ends on a thread of the tier's.
class RemoteTier::Error : public Command {
 public:
  Error(Job& job, Status status) : job_(job), status_(std::move(status)) { nowhere = true; }
  void done(const Status&, const Reply&) override {
    Job& job = job_;
    const Status status = std::move(status_);
    delete this;
    job.tier.finish(job, status);
  }

 private:
  Job& job_;
  Status status_;
};

RemoteTier::RemoteTier(RemoteOptions options) : options_(std::move(options)), random_(std::random_device{}()) {
  info_.name = options_.client.name;
  info_.kind = TierKind::kRemote;
  info_.capacity_bytes = options_.capacity_bytes;
  info_.shared = !options_.space.empty();
  std::random_device device;
  random_.seed((uint64_t{device()} << 32 | device()) ^ remote::now_ns());
  shared_ = info_.shared;
  space_ = shared_ ? remote::make_namespace(options_.space) : remote::Namespace{random_(), random_()};
  client_ = std::make_unique<remote::Client>(options_.client);
}

RemoteTier::~RemoteTier() {
  // Nobody else knows what a private tier wrote. What a server does not delete now goes by its time to live.
  if (!shared_ && client_->in_service()) {
    for (const auto& [extent, object] : objects_) unlink(*object);
    for (uint32_t waited = 0; words_.load() > 0 && waited < options_.client.timeout_ms; waited++)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  client_.reset();
}

TierUsage RemoteTier::usage() const {
  const std::lock_guard lock(mutex_);
  return {used_, objects_.size()};
}

Result<Extent> RemoteTier::allocate(const Key& key, uint64_t bytes) {
  if (!in_service()) return Status(Code::kGone, client_->trouble());
  if (bytes == 0 || bytes > UINT32_MAX || charge(bytes) > options_.capacity_bytes)
    return Status(Code::kInvalid,
                  fmt::format("{}: {} bytes asked, of {} in all", info_.name, bytes, options_.capacity_bytes));
  auto object = std::make_shared<Object>();
  object->identity.key = key;
  object->identity.bytes = bytes;
  object->unwritten = object->identity.parts();
  object->parts.resize(object->identity.parts());
  const std::lock_guard lock(mutex_);
  if (charge(bytes) > options_.capacity_bytes - used_) return Status(Code::kFull, info_.name + ": full");
  // A name says which server has it: one that does not answer is passed by.
  bool answers = false;
  for (int i = 0; i < kTries && !answers; i++) {
    object->identity.token = random_();
    answers = true;
    for (uint32_t part = 0; part < object->identity.parts() && answers; part++)
      answers = client_->answers(part_name(space_, object->identity, part));
  }
  if (!answers) return Status(Code::kGone, client_->trouble());
  objects_.emplace(next_, std::move(object));
  used_ += charge(bytes);
  return next_++;
}

void RemoteTier::free(Extent extent) {
  std::shared_ptr<Object> object;
  {
    const std::lock_guard lock(mutex_);
    const auto at = objects_.find(extent);
    if (at == objects_.end()) return;
    object = std::move(at->second);
    objects_.erase(at);
    used_ -= charge(object->identity.bytes);
  }
  if (object->own) unlink(*object);
}

void RemoteTier::unlink(const Object& object) noexcept {
  try {
    if (object.published) {
      auto word = std::make_unique<Word>(words_);
      const auto entry = make_entry(space_, object.identity);
      word->name = entry_name(space_, object.identity.key);
      word->head = remote::words({"EVAL", kDeleteOwn, "1", word->name, {entry.data(), entry.size()}});
      client_->submit(word.release());
    }
    for (uint32_t part = 0; part < object.parts.size(); part++) {
      if (!object.parts[part].written) continue;
      auto word = std::make_unique<Word>(words_);
      word->name = part_name(space_, object.identity, part);
      word->head = remote::words({"UNLINK", word->name});
      client_->submit(word.release());
    }
  } catch (const std::bad_alloc&) {
    // They go by their time to live.
  }
}

std::shared_ptr<RemoteTier::Object> RemoteTier::object_of(Extent extent) const {
  const std::lock_guard lock(mutex_);
  const auto at = objects_.find(extent);
  return at == objects_.end() ? nullptr : at->second;
}

std::pair<std::string, uint64_t> RemoteTier::place(Extent extent, uint64_t offset) const {
  const std::shared_ptr<Object> object = object_of(extent);
  if (!object) return {};
  return {part_name(space_, object->identity, static_cast<uint32_t>(offset / kPartBytes)),
          kHeaderBytes + offset % kPartBytes};
}

size_t RemoteTier::submit(std::span<Transfer* const> transfers) {
  size_t taken = 0;
  while (taken < transfers.size() && jobs_.load() < kMostJobs) {
    try {
      if (!start(*transfers[taken])) break;
    } catch (const std::bad_alloc&) {
      break;
    }
    taken++;
  }
  return taken;
}

// Throws std::bad_alloc where nothing of it has begun.
bool RemoteTier::start(Transfer& transfer) {
  auto owned = std::make_unique<Job>(*this, transfer);
  Job& job = *owned;
  const uint64_t bytes = bytes_of(transfer.pieces);
  Status wrong;
  bool nothing = false;
  if (transfer.op == Op::kFlush) {
    wrong = Status(Code::kUnsupported, info_.name + ": keeps what the server keeps; there is nothing to flush");
    nothing = true;
  } else if (!job.object || transfer.offset > job.object->identity.bytes ||
             bytes > job.object->identity.bytes - transfer.offset) {
    wrong = Status(Code::kInvalid, info_.name + ": no such extent, or beyond its end");
    nothing = true;
  } else if (bytes == 0) {
    nothing = true;
  }
  std::vector<std::unique_ptr<PartOp>> ops;
  if (!nothing) {
    const std::lock_guard lock(mutex_);
    for (uint64_t at = 0; at < bytes;) {
      const uint64_t offset = transfer.offset + at;
      const auto part = static_cast<uint32_t>(offset / kPartBytes);
      const uint64_t within = offset % kPartBytes, some = std::min(bytes - at, kPartBytes - within);
      std::vector<Piece> pieces = slice(transfer.pieces, at, some);
      if (transfer.op == Op::kRead) {
        ops.push_back(std::make_unique<ReadPart>(job, part, within, some, std::move(pieces)));
      } else {
        ops.push_back(std::make_unique<WritePart>(job, part, within, some, std::move(pieces)));
      }
      at += some;
    }
    job.left = static_cast<uint32_t>(ops.size());
  }
  std::unique_ptr<Error> error;
  if (nothing) {
    error = std::make_unique<Error>(job, std::move(wrong));
    job.left = 1;
  }
  {
    const std::lock_guard lock(mutex_);
    transfer.tier_data = &job;
  }
  jobs_++;
  const std::shared_ptr<Object> object = job.object;
  const Op op = transfer.op;
  (void)owned.release();
  // From here on the job may end at any time.
  if (error) client_->submit(error.release());
  for (std::unique_ptr<PartOp>& one : ops) {
    PartOp* const started = one.release();
    if (op == Op::kRead) {
      client_->submit(started);
    } else {
      enqueue_write(*object, static_cast<WritePart*>(started));
    }
  }
  return true;
}

void RemoteTier::cancel(Transfer& transfer) {
  {
    const std::lock_guard lock(mutex_);
    Job* const job = static_cast<Job*>(transfer.tier_data);
    if (!job) return;
    if (transfer.op == Op::kRead) job->unwanted = true;
    Job::State waiting = Job::State::kWaiting;
    // A write of which anything was begun goes on: half of it would be neither the former bytes nor these.
    if (!job->state.compare_exchange_strong(waiting, Job::State::kCancelled) && transfer.op != Op::kRead) return;
  }
  client_->sweep();
}

void RemoteTier::finish(Job& job, const Status& status) {
  Status result;
  {
    const std::lock_guard lock(mutex_);
    if (job.status.is_ok()) job.status = status;
    if (--job.left > 0) return;
    result = job.status;
    job.transfer.tier_data = nullptr;
  }
  Transfer& transfer = job.transfer;
  delete &job;
  jobs_--;
  transfer.done(transfer, std::move(result));
}

void RemoteTier::enqueue_write(Object& object, WritePart* write) {
  const uint32_t part = write->number();
  {
    const std::lock_guard lock(mutex_);
    Object::Part& mine = object.parts[part];
    (mine.first ? mine.last->next : mine.first) = write;
    mine.last = write;
  }
  next_write(object, part);
}

void RemoteTier::next_write(Object& object, uint32_t part) {
  WritePart *first = nullptr, *unwanted = nullptr;
  {
    const std::lock_guard lock(mutex_);
    Object::Part& mine = object.parts[part];
    if (mine.writing) return;
    WritePart* last = nullptr;
    while (mine.first) {
      WritePart* const one = mine.first;
      if (first && (first->is_whole() || one->is_whole())) break;
      mine.first = one->next;
      one->next = nullptr;
      if (!one->wanted()) {
        one->others = unwanted;
        unwanted = one;
        continue;
      }
      (last ? last->others : first) = one;
      last = one;
    }
    mine.writing = first != nullptr;
    if (first) mine.sums.reset();
  }
  if (first) first->go();
  while (unwanted) {
    WritePart* const one = unwanted;
    unwanted = one->others;
    one->give_up();
  }
}

void RemoteTier::written(Object& object, uint32_t part, const Sums& sums, const Status& status) {
  bool publish_now = false;
  {
    const std::lock_guard lock(mutex_);
    Object::Part& mine = object.parts[part];
    mine.writing = false;
    if (status.is_ok()) {
      mine.sums.reset(new (std::nothrow) Sums(sums));
      if (!mine.written) {
        mine.written = true;
        object.unwritten--;
      }
      publish_now = shared_ && object.own && object.unwritten == 0 && !object.published;
      if (publish_now) object.published = true;
    }
  }
  if (publish_now) publish(object);
}

void RemoteTier::publish(Object& object) noexcept {
  try {
    auto word = std::make_unique<Word>(words_);
    const auto entry = make_entry(space_, object.identity);
    word->name = entry_name(space_, object.identity.key);
    const std::string ttl = std::to_string(options_.ttl_s);
    const std::string_view bytes(entry.data(), entry.size());
    word->head = options_.ttl_s > 0 ? remote::words({"SET", word->name, bytes, "EX", ttl})
                                    : remote::words({"SET", word->name, bytes});
    client_->submit(word.release());
  } catch (const std::bad_alloc&) {
    // Others do not find it.
  }
}

// Who asks for entries, and what has come so far.
struct RemoteTier::Question {
  std::mutex mutex;
  std::condition_variable changed;
  size_t left = 0;
  bool over = false;  // what comes now is late
  std::vector<Identity> found;
};

class RemoteTier::Ask : public Command {
 public:
  Ask(RemoteTier& tier, std::shared_ptr<Question> question, const Key& key)
      : tier_(tier), question_(std::move(question)), key_(key) {
    name = entry_name(tier.space_, key);
    head = remote::words({"GET", name});
    expected = remote::kEntryBytes;
  }
  void take(std::string_view bytes) override { found_ = read_entry(tier_.space_, key_, bytes); }
  void done(const Status& status, const Reply& reply) override {
    bool late = false;
    const bool good = status.is_ok() && reply.kind == ReplyKind::kBytes && found_;
    try {
      const std::lock_guard lock(question_->mutex);
      late = question_->over;
      if (good && !late) question_->found.push_back(*found_);
    } catch (const std::bad_alloc&) {
      // Not found, this time.
    }
    if (late && good) tier_.keep_late(name, *found_);
    bool last = false;
    {
      const std::lock_guard lock(question_->mutex);
      last = --question_->left == 0;
    }
    // Who waits is not woken for each.
    if (last) question_->changed.notify_all();
    delete this;
  }

 private:
  RemoteTier& tier_;
  std::shared_ptr<Question> question_;
  const Key key_;
  std::optional<Identity> found_;
};

void RemoteTier::keep_late(const std::string& name, const Identity& identity) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (late_.size() >= kMostLate) late_.clear();
    late_[name] = identity;
  } catch (const std::bad_alloc&) {
    // It is asked for again.
  }
}

std::vector<Found> RemoteTier::find(std::span<const Key> keys, uint32_t timeout_ms) {
  std::vector<Found> found;
  if (!shared_ || !in_service()) return found;
  const auto question = std::make_shared<Question>();
  std::vector<std::unique_ptr<Ask>> asks;
  std::vector<Identity> identities;
  for (const Key& key : keys.first(std::min(keys.size(), kMostAsked))) {
    auto ask = std::make_unique<Ask>(*this, question, key);
    if (const std::lock_guard lock(mutex_); !late_.empty()) {
      if (const auto late = late_.find(ask->name); late != late_.end()) {
        identities.push_back(late->second);
        late_.erase(late);
        continue;
      }
    }
    asks.push_back(std::move(ask));
  }
  question->found.reserve(asks.size());
  question->left = asks.size();
  remote::CommandQueue all;
  for (std::unique_ptr<Ask>& ask : asks) all.push(ask.release());
  client_->submit(all);
  {
    std::unique_lock lock(question->mutex);
    question->changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return question->left == 0; });
    question->over = true;
    identities.insert(identities.end(), question->found.begin(), question->found.end());
  }
  found.reserve(identities.size());
  try {
    for (const Identity& identity : identities) {
      auto object = std::make_shared<Object>();
      object->identity = identity;
      object->own = false;
      object->parts.resize(identity.parts());
      for (Object::Part& part : object->parts) part.written = true;
      const std::lock_guard lock(mutex_);
      if (charge(identity.bytes) > options_.capacity_bytes - used_) continue;
      objects_.emplace(next_, std::move(object));
      used_ += charge(identity.bytes);
      found.push_back({identity.key, next_++, identity.bytes});
    }
  } catch (const std::bad_alloc&) {
    // The rest is found another time.
  }
  return found;
}

std::unique_ptr<Tier> make_remote_tier(const RemoteOptions& options) { return std::make_unique<RemoteTier>(options); }

}  // namespace neotier::engine
