// SPDX-License-Identifier: Apache-2.0
#include "replay/pages/recording.h"

#include <fmt/format.h>

#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "trace/reader.h"
#include "trace/writer.h"

namespace neotier::pages {

namespace {

using trace::Field;

constexpr uint64_t kLineMask = ((uint64_t{1} << 40) - 1) & ~uint64_t{63};
constexpr uint32_t kMaxPages = (1u << (32 - kStepBits)) - 1;
constexpr uint64_t kMaxMlp = 65535;
constexpr uint64_t kMaxCxlBytes = uint64_t{1} << 40;  // a replay takes 4 bytes of memory for each page of it
// The kernel clears or copies a page line by line. So many lines in rising order, up to the last but so many, are that:
// some may be cached and not be filled.
constexpr unsigned kFreshLines = 40, kLastLine = 60;

// By page frame number, of 28 bits; what there is none of yet comes into being. A recording names some millions of
// times which page a line is of.
template <class T>
class ByFrame {
 public:
  T& operator[](uint64_t number) {
    const size_t group = number / kGroup;
    if (group >= groups_.size()) groups_.resize(group + 1);
    if (!groups_[group]) groups_[group] = std::make_unique<std::array<T, kGroup>>();
    return (*groups_[group])[number % kGroup];
  }

 private:
  static constexpr uint64_t kGroup = 64;
  std::vector<std::unique_ptr<std::array<T, kGroup>>> groups_;
};

bool is_files(trace::Record what) { return what == trace::Record::kFile || what == trace::Record::kCached; }

class Builder {
 public:
  explicit Builder(const std::filesystem::path& file) : file_(file) {}

  void take(uint64_t word) {
    ++record_;
    if (record_ == 1 && word != trace::header_of(Field::kVersion, trace::kRecordingVersion)) {
      if (trace::kind_of(word) == trace::Record::kHeader) fail("is a recording of another version; record it again");
      fail("is no recording with time; make one with `neotier hil record --timed`");
    }
    if (ended_ && trace::kind_of(word) != trace::Record::kHeader) fail("goes on after its end");
    switch (trace::kind_of(word)) {
      case trace::Record::kLine:
        line(word);
        break;
      case trace::Record::kTime:
        step(static_cast<uint32_t>(Step::kTime));
        step(static_cast<uint32_t>(word & trace::kTimeField));
        step(static_cast<uint32_t>(word >> 28 & trace::kTimeField));
        r_.instructions += word & trace::kTimeField;
        break;
      case trace::Record::kAccessed:
      case trace::Record::kFree:
      case trace::Record::kAnonymous:
      case trace::Record::kFile:
      case trace::Record::kCached:
      case trace::Record::kOther:
        pages(trace::kind_of(word), word & ((uint64_t{1} << 40) - 1), word >> 40 & 0xffff);
        break;
      case trace::Record::kOwner:
        owner(places_[word & trace::kOwnerField], word & trace::kOwnerField, word >> 28 & trace::kOwnerField);
        break;
      case trace::Record::kHeader:
        header(word >> 48 & 0xff, word & ((uint64_t{1} << 48) - 1));
        break;
      default:
        fail("has a record of no known kind");
    }
  }

  Recording finish() {
    if (record_ == 0) fail("is empty");
    if (!ended_) fail("ends before its totals; was it cut?");
    if (r_.fills[0] != r_.field(Field::kEndDramFills) || r_.fills[1] != r_.field(Field::kEndCxlFills)) {
      fail("has not the fills that its totals name; is it damaged?");
    }
    for (size_t i = 0; i < r_.pages.size(); ++i) {
      const Seen& seen = seen_[i];
      r_.pages[i].movable = seen.anonymous || (seen.touched && !seen.file && !(has_states_ && seen.other));
      r_.pages[i].evictable = r_.pages[i].movable || seen.file;
      if (r_.pages[i].movable || !seen.file || seen.touched) continue;
      r_.pages[i].code = tells_cached_ && seen.mapped;
      r_.pages[i].cached = !r_.pages[i].code;
    }
    return std::move(r_);
  }

 private:
  struct Place {
    uint32_t page = kNoPage;
    uint8_t next_line = 0, lines = 0;  // of what may be clearing
    bool free = false;                 // as the recording's states have it
    bool cleared_only = false;         // since the page came into being, nothing but what may be clearing
    bool owner_stays = false;          // the page has its owner from the one before it, until another is told
  };
  struct Seen {
    bool touched = false;  // by an address of a program
    bool anonymous = false, file = false, other = false;
    bool mapped = false;  // of a file's: ever
    // A page keeps its kind: what has another is somebody else's. Of a file it is whether or not it is mapped now.
    bool ends_by(trace::Record what) const {
      return (anonymous && what != trace::Record::kAnonymous) || (file && !is_files(what));
    }
  };

  [[noreturn]] void fail(const std::string& why) const {
    throw std::runtime_error(fmt::format("{}: {} (record {})", file_.string(), why, record_));
  }

  void step(uint32_t word) { r_.steps.push_back(word); }

  void header(uint64_t field, uint64_t value) {
    if (field == 0 || field >= r_.fields.size()) fail("has a header field of no known kind");
    r_.fields[field] = value;
    if (trace::is_total(static_cast<Field>(field))) ended_ = true;
    if (static_cast<Field>(field) == Field::kCxlBytes) cxl_bytes_ = value;
    if (static_cast<Field>(field) == Field::kCxlBase) cxl_base_ = value;
    if ((static_cast<Field>(field) == Field::kShift && value > 10) ||
        (static_cast<Field>(field) == Field::kCxlBytes && value > kMaxCxlBytes) ||
        (static_cast<Field>(field) == Field::kMlp && (value == 0 || value > kMaxMlp))) {
      fail("has a header field out of range");
    }
  }

  bool is_cxl(uint64_t number) const { return (number << 12) - cxl_base_ < cxl_bytes_; }

  uint32_t add_page(uint64_t number, uint32_t replaces, bool fresh) {
    if (r_.pages.size() >= kMaxPages) fail("has more pages than a replay can tell apart");
    r_.pages.push_back({.replaces = replaces, .cxl = is_cxl(number), .fresh = fresh});
    // What a page is is known at latest from the next states; what was there before had some.
    seen_.push_back({.other = !fresh});
    return static_cast<uint32_t>(r_.pages.size() - 1);
  }

  void come(uint64_t number, Place& place) {
    place.page = add_page(number, kNoPage, place.free);
    place.next_line = place.lines = 0;
    place.cleared_only = true;
    place.owner_stays = false;
    if (place.free) step(step_of(Step::kNew, place.page));
    place.free = false;
  }

  void go(Place& place) {
    if (place.page == kNoPage) return;
    step(step_of(Step::kGone, place.page));
    place.page = kNoPage;
  }

  void line(uint64_t word) {
    const uint64_t address = word & kLineMask;
    const bool is_write = word & trace::kWriteBit, by_kernel = word & trace::kKernelBit;
    if ((word & ~(kLineMask | trace::kWriteBit | trace::kKernelBit)) != 0) fail("has an address that is no line's");
    if (is_write) {
      ++r_.writebacks[is_cxl(address >> 12)];
      // What is written to free memory is what a page that has gone left in a cache; no page comes with it.
      Place& at = places_[address >> 12];
      if (at.page == kNoPage && at.free) return;
      if (at.page == kNoPage) come(address >> 12, at);
      step(step_of(Step::kWriteback, at.page));
      return;
    }
    Place& at = places_[address >> 12];
    if (at.page == kNoPage) come(address >> 12, at);
    ++r_.fills[is_cxl(address >> 12)];
    if (!by_kernel) {
      seen_[at.page].touched = true;
      at.cleared_only = false;
      at.next_line = at.lines = 0;
    } else {
      clearing(at, address);
    }
    step(step_of(Step::kFill, at.page));
  }

  void clearing(Place& at, uint64_t address) {
    const auto line = static_cast<uint8_t>(address >> 6 & 63);
    if (line < at.next_line) {
      at.lines = 0;
      at.cleared_only = false;
    }
    at.next_line = static_cast<uint8_t>(line + 1);
    if (++at.lines < kFreshLines || line < kLastLine) return;
    at.lines = at.next_line = 0;
    // A system call reads a file's page in the same way. Where it is another's by now, the next look tells.
    if (seen_[at.page].file) return;
    // What was there before is gone. Its last user was the page that this one replaces, unless nothing but the clearing
    // is known of it: then it is the same page.
    Page& old = r_.pages[at.page];
    if (old.fresh && at.cleared_only) {
      at.cleared_only = false;
      return;
    }
    if (!old.fresh && !seen_[at.page].touched && !seen_[at.page].anonymous && !seen_[at.page].file) {
      // Where states are told, it was not free when the region began, but on a list of the processor's: no free page
      // is gone with it.
      old.fresh = !has_states_;
      step(step_of(Step::kNew, at.page));
      return;
    }
    const uint32_t replaces = at.page;
    at.page = add_page(address >> 12, replaces, true);
    r_.pages[at.page].owner = r_.pages[replaces].owner;
    at.owner_stays = true;
    step(step_of(Step::kNew, at.page));
  }

  void pages(trace::Record what, uint64_t group, uint64_t mask) {
    if (group > trace::kOwnerField / 16) fail("has pages of no address");
    has_states_ |= what != trace::Record::kAccessed;
    for (uint64_t bit = 0; bit < 16; ++bit) {
      if ((mask >> bit & 1) == 0) continue;
      const uint64_t number = group * 16 + bit;
      if (what == trace::Record::kAccessed) {
        // A page whose lines were never fetched is of no interest.
        const uint32_t page = places_[number].page;
        if (page != kNoPage) step(step_of(Step::kAccessed, page));
      } else {
        state(what, number, places_[number]);
      }
    }
  }

  void state(trace::Record what, uint64_t number, Place& at) {
    if (what == trace::Record::kFree) {
      go(at);
      at.free = true;
      return;
    }
    if (at.page != kNoPage && seen_[at.page].ends_by(what)) {
      go(at);
      at.free = true;
    }
    if (at.page == kNoPage) {
      const bool was_there = !at.free;
      come(number, at);
      if (was_there) step(step_of(Step::kNew, at.page));
    }
    Seen& seen = seen_[at.page];
    (what == trace::Record::kAnonymous ? seen.anonymous : is_files(what) ? seen.file : seen.other) = true;
    seen.mapped |= what == trace::Record::kFile;
    tells_cached_ |= what == trace::Record::kCached;
  }

  // Its memory was freed and got by another between two looks at what it is used for.
  void owner(Place& at, uint64_t number, uint64_t owner) {
    if (at.page == kNoPage || owner == 0) fail("has an owner of no page");
    if (r_.pages[at.page].owner != 0 && r_.pages[at.page].owner != owner && !at.owner_stays) {
      const Seen& old = seen_[at.page];
      const Seen kind = {.anonymous = old.anonymous, .file = old.file, .mapped = old.mapped};
      go(at);
      at.free = true;
      come(number, at);
      seen_[at.page] = kind;
    }
    r_.pages[at.page].owner = static_cast<uint32_t>(owner);
    at.owner_stays = false;
  }

  std::filesystem::path file_;
  Recording r_;
  uint64_t record_ = 0, cxl_base_ = 0, cxl_bytes_ = 0;
  bool ended_ = false, has_states_ = false, tells_cached_ = false;
  std::vector<Seen> seen_;  // of each page
  ByFrame<Place> places_;
};

}  // namespace

Recording read_recording(const std::filesystem::path& file) {
  trace::Reader reader(file);
  Builder builder(file);
  for (auto records = reader.next(); !records.empty(); records = reader.next()) {
    for (const uint64_t word : records) builder.take(word);
  }
  return builder.finish();
}

}  // namespace neotier::pages
