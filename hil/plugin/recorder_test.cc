// SPDX-License-Identifier: GPL-2.0-or-later
// What a recording tells of frames: what each is used for, and whose it is, when that changes.
#include "hil/plugin/recorder.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <vector>

#include "trace/reader.h"
#include "util/temporary_folder.h"

namespace neotier::hil {
namespace {

using trace::Record;

TEST(Recorder, TellsOfFramesWhatHasChanged) {
  const TemporaryFolder folder("neotier-recorder-test");
  const std::filesystem::path file = folder.path() / "a.rec";
  FrameCensus census;
  census.states = {FrameState::kOther, FrameState::kFree, FrameState::kAnonymous, FrameState::kFile};
  census.owners = {0, 0, 7, 8};
  Recorder recorder({.file = file.string(), .timed = true});
  recorder.begin({}, census, {});
  census.states[2] = FrameState::kFree;
  census.owners[2] = 0;
  census.states[3] = FrameState::kCached;
  census.owners[3] = 9;
  // A census every 10 ms: the 100th tick.
  for (int tick = 0; tick < 100; ++tick) recorder.tick({}, [&] { return census; });
  recorder.finish();

  std::vector<uint64_t> words;
  trace::Reader reader(file);
  for (auto records = reader.next(); !records.empty(); records = reader.next()) {
    words.insert(words.end(), records.begin(), records.end());
  }
  EXPECT_EQ(words,
            (std::vector<uint64_t>{trace::pages_of(Record::kFree, 0, 2), trace::pages_of(Record::kAnonymous, 0, 4),
                                   trace::pages_of(Record::kFile, 0, 8), trace::owner_of(2, 7), trace::owner_of(3, 8),
                                   trace::pages_of(Record::kFree, 0, 4), trace::pages_of(Record::kCached, 0, 8),
                                   trace::owner_of(3, 9)}));
}

}  // namespace
}  // namespace neotier::hil
