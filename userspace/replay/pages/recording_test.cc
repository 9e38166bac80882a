// SPDX-License-Identifier: Apache-2.0
// Recordings: what is read back of what was written, pages that change hands, files that are none.
#include "replay/pages/recording.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "replay/pages/recording_testing.h"
#include "trace/writer.h"

namespace neotier::pages {
namespace {

using testing::HasSubstr;
using trace::Field;
using trace::Record;

TEST(Recording, LinesTimesAndAccessedPagesComeInOrder) {
  RecordingFile file;
  file.line(0x1000);
  file.time(100, 24'000);
  file.line(RecordingFile::kCxlBase + 0x40);
  file.line(0x1000, true);
  file.accessed(1);
  const Recording r = file.read();
  EXPECT_EQ(r.steps, (std::vector<uint32_t>{step_of(Step::kFill, 0), static_cast<uint32_t>(Step::kTime), 100, 24'000,
                                            step_of(Step::kFill, 1), step_of(Step::kWriteback, 0),
                                            step_of(Step::kAccessed, 0)}));
  EXPECT_FALSE(r.pages[0].cxl);
  EXPECT_TRUE(r.pages[1].cxl);
  EXPECT_EQ(r.fills[0], 1u);
  EXPECT_EQ(r.fills[1], 1u);
  EXPECT_EQ(r.writebacks[0], 1u);
  EXPECT_EQ(r.instructions, 100u);
}

TEST(Recording, APageThatTheKernelClearsIsANewOne) {
  RecordingFile file;
  file.line(0x5000);  // a program's
  file.clear(0x5000);
  file.line(0x5000);
  const Recording r = file.read();
  ASSERT_EQ(r.pages.size(), 2u);
  EXPECT_EQ(r.pages[1].replaces, 0u);
  EXPECT_TRUE(r.pages[1].fresh);
  EXPECT_FALSE(r.pages[0].fresh);
  EXPECT_EQ(r.steps.back(), step_of(Step::kFill, 1));
}

TEST(Recording, APageKnownOnlyByItsClearingIsOne) {
  RecordingFile file;
  file.clear(0x5000);
  file.line(0x5000);
  const Recording r = file.read();
  ASSERT_EQ(r.pages.size(), 1u);
  EXPECT_TRUE(r.pages[0].fresh);
}

TEST(Recording, AProgramThatStreamsThroughAPageOwnsItStill) {
  RecordingFile file;
  for (uint64_t line = 0; line < 64; ++line) file.line(0x5000 + line * 64);
  const Recording r = file.read();
  EXPECT_EQ(r.pages.size(), 1u);
  EXPECT_FALSE(r.pages[0].fresh);
}

TEST(Recording, OnlyWhatAProgramTouchesCanBeMoved) {
  RecordingFile file;
  file.line(0x5000, false, true);
  file.line(0x6000);
  const Recording r = file.read();
  EXPECT_FALSE(r.pages[0].movable);
  EXPECT_TRUE(r.pages[1].movable);
}

TEST(Recording, AFreedPageIsGoneAndItsMemoryANewPages) {
  RecordingFile file;
  file.state(Record::kAnonymous, 5);
  file.line(0x5000);
  file.state(Record::kFree, 5);
  file.clear(0x5000);
  file.line(0x5000);
  const Recording r = file.read();
  ASSERT_EQ(r.pages.size(), 2u);
  EXPECT_FALSE(r.pages[0].fresh);
  EXPECT_TRUE(r.pages[1].fresh) << "taken from free memory, and cleared: one page, not two";
  EXPECT_EQ(r.pages[1].replaces, kNoPage);
  EXPECT_EQ(r.steps[0], step_of(Step::kNew, 0));
  EXPECT_EQ(r.steps[2], step_of(Step::kGone, 0));
  EXPECT_EQ(r.steps[3], step_of(Step::kNew, 1));
  EXPECT_EQ(r.steps.back(), step_of(Step::kFill, 1));
}

// A cache still has its lines.
TEST(Recording, WhatIsWrittenBackToFreeMemoryIsNoPage) {
  RecordingFile file;
  file.state(Record::kAnonymous, 5);
  file.line(0x5000);
  file.state(Record::kFree, 5);
  file.line(0x5000, true);
  const Recording r = file.read();
  EXPECT_EQ(r.pages.size(), 1u);
  EXPECT_EQ(r.writebacks[0], 1u);
  EXPECT_EQ(r.steps.back(), step_of(Step::kGone, 0));
}

// It was on a list of the processor's, and no free page is gone with it.
TEST(Recording, WhatIsClearedWasFreeWhereStatesSaySo) {
  RecordingFile file;
  file.state(Record::kFree, 5);
  for (const uint64_t page : {5, 6}) {
    file.clear(page << 12);
    file.line(page << 12);
  }
  const Recording r = file.read();
  ASSERT_EQ(r.pages.size(), 2u);
  EXPECT_TRUE(r.pages[0].fresh);
  EXPECT_FALSE(r.pages[1].fresh);
}

TEST(Recording, StatesSayWhatCanBeMoved) {
  RecordingFile file;
  file.state(Record::kAnonymous, 5);  // never touched: there all the same, and can make room
  file.state(Record::kFree, 8);
  file.line(0x6000);  // a program's, in no state: text, say
  file.line(0x8000);
  file.state(Record::kFree, 8);  // came and went between two looks
  file.state(Record::kFree, 9);
  file.line(0x9000, false, true);
  file.state(Record::kOther, 9);
  const Recording r = file.read();
  ASSERT_EQ(r.pages.size(), 4u);
  EXPECT_TRUE(r.pages[0].movable);
  EXPECT_FALSE(r.pages[1].movable);
  EXPECT_TRUE(r.pages[2].movable);
  EXPECT_FALSE(r.pages[3].movable);
  EXPECT_TRUE(r.pages[3].fresh);
}

TEST(Recording, AProgramsPageThatBecomesTheKernelsIsAnother) {
  RecordingFile file;
  file.state(Record::kAnonymous, 5);
  file.state(Record::kOther, 5);
  const Recording r = file.read();
  ASSERT_EQ(r.pages.size(), 2u);
  EXPECT_TRUE(r.pages[0].movable);
  EXPECT_FALSE(r.pages[1].movable);
}

// Program text, tmpfs, page cache: evictable, and no program's own.
TEST(Recording, AFilesPageIsNoProgramsOwn) {
  RecordingFile file;
  file.state(Record::kFile, 5);
  file.line(0x5000);
  file.state(Record::kAnonymous, 5);  // its memory has become a program's
  file.line(0x5000);
  const Recording r = file.read();
  ASSERT_EQ(r.pages.size(), 2u);
  EXPECT_FALSE(r.pages[0].movable);
  EXPECT_TRUE(r.pages[0].evictable);
  EXPECT_TRUE(r.pages[1].movable);
  EXPECT_TRUE(r.pages[1].evictable);
  EXPECT_TRUE(r.pages[1].fresh);
}

// As clearing does, it fetches a page's lines one after another.
TEST(Recording, WhatASystemCallReadsOfAFileIsNoNewPage) {
  RecordingFile file;
  file.state(Record::kFile, 6);
  file.put(trace::owner_of(6, 77));
  for (int times = 0; times < 3; ++times) file.clear(0x6000);
  file.put(trace::owner_of(6, 78));  // another file's
  const Recording r = file.read();
  ASSERT_EQ(r.pages.size(), 2u);
  EXPECT_TRUE(r.pages[0].evictable);
  EXPECT_EQ(r.pages[0].owner, 77u);
  EXPECT_EQ(r.pages[1].owner, 78u);
  EXPECT_TRUE(r.pages[1].evictable);
}

// What nobody maps is cached; what is mapped and not accessed is code.
TEST(Recording, ARecordingThatTellsWhatIsMappedIsBelieved) {
  RecordingFile file;
  file.state(Record::kFile, 5);
  file.state(Record::kFile, 6);
  file.line(0x6000);
  file.state(Record::kCached, 7);
  file.state(Record::kCached, 8);
  file.state(Record::kFile, 8);  // from now on: the same page
  file.state(Record::kFile, 9);
  file.state(Record::kCached, 9);
  file.state(Record::kCached, 10);
  file.line(0xa000);  // mapped between two looks
  file.state(Record::kFile, 11);
  file.put(trace::owner_of(11, 77));
  file.put(trace::owner_of(11, 78));  // another file's, mapped as well
  const Recording r = file.read();
  ASSERT_EQ(r.pages.size(), 8u);
  for (const auto& [page, cached, code] : {std::tuple{0, false, true},
                                           {1, false, false},
                                           {2, true, false},
                                           {3, false, true},
                                           {4, false, true},
                                           {5, false, false},
                                           {6, false, true},
                                           {7, false, true}}) {
    EXPECT_EQ(r.pages[page].cached, cached) << page;
    EXPECT_EQ(r.pages[page].code, code) << page;
    EXPECT_TRUE(r.pages[page].evictable) << page;
  }
}

TEST(Recording, AFilesPageIsCachedAloneUntilAProgramAccessesIt) {
  RecordingFile file;
  file.state(Record::kFile, 5);
  file.line(0x5000, false, true);
  file.accessed(5);
  file.state(Record::kFile, 6);
  file.line(0x6000, false, true);
  file.line(0x6000);
  file.state(Record::kFile, 7);  // never used
  file.state(Record::kAnonymous, 8);
  file.line(0x9000, false, true);  // the kernel's own
  const Recording r = file.read();
  ASSERT_EQ(r.pages.size(), 5u);
  EXPECT_TRUE(r.pages[0].cached);
  EXPECT_FALSE(r.pages[1].cached);
  EXPECT_TRUE(r.pages[2].cached);
  EXPECT_FALSE(r.pages[3].cached);
  EXPECT_FALSE(r.pages[4].cached);
}

// Between two looks a page is freed and its memory is another's, also where nothing is cleared.
TEST(Recording, AnotherOwnerIsAnotherPage) {
  RecordingFile file;
  file.state(Record::kAnonymous, 5);
  file.put(trace::owner_of(5, 77));
  file.line(0x5000);
  file.put(trace::owner_of(5, 78));
  file.line(0x5000);
  file.clear(0x5000);
  const Recording r = file.read();
  ASSERT_EQ(r.pages.size(), 3u);
  EXPECT_EQ(r.pages[0].owner, 77u);
  EXPECT_EQ(r.pages[1].owner, 78u);
  EXPECT_TRUE(r.pages[1].movable);
  EXPECT_TRUE(r.pages[1].fresh);
  EXPECT_EQ(r.pages[2].owner, 78u) << "freed, and got again at the same address";
}

TEST(Recording, AClearedPagesNewOwnerIsNoOtherPage) {
  RecordingFile file;
  file.state(Record::kAnonymous, 5);
  file.put(trace::owner_of(5, 77));
  file.line(0x5000);
  file.clear(0x5000);
  file.put(trace::owner_of(5, 78));
  const Recording r = file.read();
  ASSERT_EQ(r.pages.size(), 2u);
  EXPECT_EQ(r.pages[1].owner, 78u);
}

TEST(Recording, WhatIsNoneIsOneLine) {
  const auto refused = [](RecordingFile& file) {
    try {
      file.read();
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string("was read");
  };
  RecordingFile bare(RecordingFile::kBare);
  bare.put(0x1000);
  EXPECT_THAT(refused(bare), HasSubstr("is no recording with time; make one with `neotier hil record --timed`"));

  RecordingFile newer(RecordingFile::kBare);
  newer.put(trace::header_of(Field::kVersion, trace::kRecordingVersion + 1));
  EXPECT_THAT(refused(newer), HasSubstr("of another version"));

  RecordingFile cut;
  cut.line(0x1000);
  cut.leave_out_totals();
  EXPECT_THAT(refused(cut), HasSubstr("ends before its totals; was it cut?"));

  RecordingFile lost;
  lost.line(0x1000);
  lost.forget_a_fill();
  EXPECT_THAT(refused(lost), HasSubstr("has not the fills that its totals name"));

  RecordingFile strange;
  strange.put(uint64_t{10} << 56);
  EXPECT_THAT(refused(strange), HasSubstr("no known kind"));

  RecordingFile nobodys;
  nobodys.put(trace::owner_of(5, 77));
  EXPECT_THAT(refused(nobodys), HasSubstr("has an owner of no page"));

  // A page's number decides how much memory the reader takes.
  RecordingFile nowhere;
  nowhere.state(trace::Record::kFree, uint64_t{1} << 28);
  EXPECT_THAT(refused(nowhere), HasSubstr("has pages of no address"));

  RecordingFile overlapping;
  overlapping.put(trace::header_of(Field::kMlp, 65536));
  EXPECT_THAT(refused(overlapping), HasSubstr("has a header field out of range"));
}

// A header decides how much memory a replay takes.
TEST(Recording, MoreCxlMemoryThanThereIsAnywhereIsRefused) {
  RecordingFile file;
  file.put(trace::header_of(trace::Field::kCxlBytes, uint64_t{1} << 47));
  file.line(0x1000);
  EXPECT_THROW(file.read(), std::runtime_error);
}

}  // namespace
}  // namespace neotier::pages
