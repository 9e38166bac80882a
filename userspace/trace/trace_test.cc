// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "trace/concentration.h"
#include "trace/reader.h"
#include "trace/summary.h"
#include "trace/writer.h"
#include "util/temporary_folder.h"
#include "util/testing/content.h"

namespace neotier::trace {
namespace {

namespace fs = std::filesystem;

class TraceTest : public ::testing::Test {
 protected:
  fs::path write(const char* name, const std::vector<uint64_t>& records) {
    Writer writer(folder_ / name);
    for (const uint64_t record : records) writer.put(record);
    EXPECT_EQ(writer.records(), records.size());
    writer.finish();
    return folder_ / name;
  }
  fs::path bytes(const char* name, const std::string& content) {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }
  static std::vector<uint64_t> read(const fs::path& file) {
    Reader reader(file);
    std::vector<uint64_t> all;
    for (auto block = reader.next(); !block.empty(); block = reader.next()) {
      all.insert(all.end(), block.begin(), block.end());
    }
    return all;
  }
  static std::string error_of(const fs::path& file) {
    try {
      read(file);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "no error";
  }
  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

std::vector<uint64_t> random_records(size_t n) {
  std::mt19937_64 random(7);
  std::vector<uint64_t> records(n);
  for (uint64_t& record : records) record = (random() % (1 << 20)) << 6 | (random() & 1);
  return records;
}

TEST_F(TraceTest, EveryFormReadsBackWhatWasWritten) {
  const auto records = random_records(400'000);  // several blocks of every kind
  for (const char* name : {"a.u64", "a.u64.zst", "a.csv"}) {
    EXPECT_EQ(read(write(name, records)), records) << name;
    EXPECT_FALSE(fs::exists(folder_ / (std::string(name) + ".part"))) << name;
  }
  EXPECT_EQ(fs::file_size(folder_ / "a.u64"), records.size() * 8);
  // Compresses to far less than it decompresses to in a block.
  EXPECT_EQ(read(write("same.zst", std::vector<uint64_t>(3'000'000, 64))).size(), 3'000'000u);
}

TEST_F(TraceTest, AWriterThatDoesNotFinishLeavesNothing) {
  {
    Writer writer(folder_ / "x.zst");
    writer.put(64);
  }
  EXPECT_FALSE(fs::exists(folder_ / "x.zst"));
  EXPECT_THROW(Writer(folder_ / "no" / "x"), std::runtime_error);
}

TEST_F(TraceTest, BadFilesAreOneLine) {
  const auto expect = [](const std::string& error, const char* text) {
    EXPECT_NE(error.find(text), std::string::npos) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  };
  expect(error_of(folder_ / "none.zst"), "no such file");
  expect(error_of(folder_), "is no file");
  expect(error_of(bytes("empty.zst", "")), "is empty");
  expect(error_of(bytes("odd.u64", "1234567890123")), "no whole number of 8-byte records");
  expect(error_of(bytes("garbage.zst", "this is no zstd frame at all")), "damaged or not zstd");

  std::string whole = content(write("whole.zst", random_records(300'000)));
  expect(error_of(bytes("cut.zst", whole.substr(0, whole.size() / 2))), "truncated");
  expect(error_of(bytes("cut1.zst", whole.substr(0, whole.size() - 1))), "truncated");
  whole[whole.size() / 2] ^= 0x40;
  expect(error_of(bytes("flipped.zst", whole)), "damaged");
  expect(error_of(bytes("named.u64", std::string("\x28\xb5\x2f\xfd", 4) + "1234")), "end in .zst");

  expect(error_of(bytes("a.csv", "0x40,1\n")), "line 1: expected 'address,write'");
  expect(error_of(bytes("b.csv", "address,write\n0x40,1\n0x80;1\n")), "line 3");
  expect(error_of(bytes("c.csv", "address,write\n0x41,1\n")), "line 2");
  expect(error_of(bytes("d.csv", "address,write\n0x40,2\n")), "line 2");
  expect(error_of(bytes("e.csv", "address,write\n" + std::string(9000, '1'))), "longer than any record");
  EXPECT_EQ(read(bytes("f.csv", "address,write\r\n0x40,1\r\n128,0")), (std::vector<uint64_t>{0x41, 128}));
}

TEST_F(TraceTest, ARecordThatEndsTheFrameTooEarlyIsFound) {
  // Whole as zstd, but 12 bytes of content.
  const fs::path raw = bytes("a.bin", "123456789012");
  ASSERT_EQ(std::system(("zstd -q " + raw.string() + " -o " + (folder_ / "a.zst").string()).c_str()), 0);
  EXPECT_NE(error_of(folder_ / "a.zst").find("ends within a record (4 bytes over)"), std::string::npos)
      << error_of(folder_ / "a.zst");
}

TEST(Concentration, IsTheShareOfTheHottestPages) {
  // 200 pages: two with 100 accesses, the rest with 1: 398 in all.
  std::vector<uint64_t> counts(200, 1);
  counts[50] = counts[150] = 100;
  const auto shares = concentration(counts);
  EXPECT_DOUBLE_EQ(shares[0], 200.0 / 398);  // 2 pages
  EXPECT_DOUBLE_EQ(shares[1], 208.0 / 398);  // 10
  EXPECT_DOUBLE_EQ(shares[4], 298.0 / 398);  // 100
  EXPECT_DOUBLE_EQ(concentration({5})[0], 1.0);
  EXPECT_DOUBLE_EQ(concentration({})[0], 0.0);
}

TEST(Summary, CountsWhatIsThere) {
  Summary summary;
  summary.add(std::vector<uint64_t>{0x1000, 0x1041, 0x2000, 0x5008});
  const auto json = summary.json();
  EXPECT_EQ(json["records"], 4);
  EXPECT_EQ(json["reads"], 3);
  EXPECT_EQ(json["writes"], 1);
  EXPECT_EQ(json["pages"], 3);
  EXPECT_EQ(json["first_address"], 0x1000);
  EXPECT_EQ(json["last_address"], 0x5008);
  EXPECT_EQ(json["unaligned"], 1);
  EXPECT_NE(to_text(json).find("0x1000 to 0x5008"), std::string::npos);
  EXPECT_EQ(Summary().json()["records"], 0);
}

// The table of the shared traces' README, made by an independent program.
struct Known {
  const char* file;
  double millions;
  uint64_t pages;
  std::array<double, 5> percent;
};
class SharedTrace : public ::testing::TestWithParam<Known> {};

TEST_P(SharedTrace, HasTheConcentrationThatItsReadmeGives) {
  const char* folder = std::getenv("NEOTIER_DATA");
  const fs::path file =
      fs::path(folder ? folder : NEOTIER_SOURCE_DIR "/../shared/data") / "memory-traces" / GetParam().file;
  if (!fs::exists(file)) GTEST_SKIP() << "skipped: no " << file << "; NEOTIER_DATA names the folder that has it";
  Reader reader(file);
  Summary summary;
  for (auto block = reader.next(); !block.empty(); block = reader.next()) summary.add(block);
  const auto json = summary.json();
  EXPECT_NEAR(json["records"].get<double>() / 1e6, GetParam().millions, 0.005);
  EXPECT_EQ(json["pages"], GetParam().pages);
  EXPECT_EQ(json["unaligned"], 0);
  for (size_t i = 0; i < kConcentrationPercent.size(); ++i) {
    // 0.06: the README rounds 78.946 up to 79.0.
    EXPECT_NEAR(100 * json["concentration"][std::to_string(kConcentrationPercent[i])].get<double>(),
                GetParam().percent[i], 0.06)
        << kConcentrationPercent[i] << " %";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Readme, SharedTrace,
    ::testing::Values(Known{"gapbs-pagerank-kron19.u64.zst", 6.60, 17173, {17.8, 51.3, 55.0, 62.5, 75.0}},
                      Known{"redis-ycsb-a.u64.zst", 3.42, 44810, {6.0, 19.0, 29.9, 52.9, 79.0}}),
    [](const auto& known) { return known.index == 0 ? "pagerank" : "redis"; });

}  // namespace
}  // namespace neotier::trace
