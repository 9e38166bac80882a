// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "util/temporary_folder.h"

namespace neotier::report {
namespace {

namespace fs = std::filesystem;

// A build folder with a chart library of three words.
class PageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_ / "report");
    std::ofstream(folder_ / "report" / "echarts.min.js") << "var library='</script>';";
    std::ofstream(folder_ / "report" / "LICENSE") << "licence text";
    std::ofstream(folder_ / "report" / "NOTICE") << "notice text";
    setenv("NEOTIER_BUILD", folder_.c_str(), 1);
  }
  void TearDown() override { unsetenv("NEOTIER_BUILD"); }
  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

const std::string kHostile = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&";

TEST_F(PageTest, NoStringBecomesMarkup) {
  Page page(kHostile, kHostile);
  page.section(kHostile);
  page.heading(kHostile);
  page.prose(kHostile);
  page.table(kHostile, {kHostile, kHostile}, {{kHostile, kHostile}});
  page.definitions({{kHostile, kHostile, kHostile}});
  page.chart({{"kind", "bars"}, {"title", kHostile}, {"note", kHostile}, {"categories", {kHostile}}});
  page.choice(kHostile, {{kHostile, Json{{"kind", "lines"}, {"title", kHostile}}}});
  page.colour_order({kHostile});
  const std::string html = page.html();
  EXPECT_EQ(count(html, "<img"), 0u);
  // The licence, the data, the library and the page's own.
  EXPECT_EQ(count(html, "<script"), 4u);
  EXPECT_EQ(count(html, "</script"), 4u) << "the library's own '</script>' is hidden from the HTML parser too";
  EXPECT_NE(html.find("var library='\\x3c/script>'"), std::string::npos);
}

TEST_F(PageTest, IsOneFileWithLibraryAndLicence) {
  Page page("t", "l");
  page.chart({{"kind", "lines"}, {"title", "x"}});
  const std::string html = page.html();
  EXPECT_NE(html.find("licence text\nnotice text"), std::string::npos);
  EXPECT_NE(html.find("default-src 'none'"), std::string::npos);
  for (const char* reference : {"src=", "href=\"http", "url(", "@import"})
    EXPECT_EQ(count(html, reference), 0u) << reference;
}

TEST_F(PageTest, ChartsThatFollowEachOtherShareABlock) {
  Page page("t", "l");
  const Json chart = {{"kind", "lines"}, {"title", "x"}};
  page.section("a");
  page.chart(chart);
  page.chart(chart);
  page.prose("between");
  page.chart(chart);
  page.section("b");
  page.section("c");
  const std::string html = page.html();
  EXPECT_EQ(count(html, "<div class=\"charts\">"), 2u);
  EXPECT_EQ(count(html, "<section"), 3u);
  EXPECT_EQ(count(html, "</section>"), 3u);
  EXPECT_EQ(count(html, "<div"), count(html, "</div>"));
  EXPECT_NE(html.find("data-charts=\"2\""), std::string::npos);
  EXPECT_NE(html.find("<a href=\"#s1\">b</a>"), std::string::npos);
}

TEST_F(PageTest, NumbersAndSentencesAreSetTheirWay) {
  Page page("t", "l");
  page.table("c", {"a", "b", "c", "d"},
             {{"1", "-1.5 %", "a word", "8 words that would be a column " + std::string(40, 'x')}});
  EXPECT_NE(
      page.html().find("<th scope=\"row\">1</th><td class=\"n\">-1.5 %</td><td>a word</td><td class=\"long\">8 words"),
      std::string::npos);
}

TEST_F(PageTest, BytesThatAreNoTextAreReplaced) {
  Page page("t", "l");
  page.chart({{"kind", "lines"}, {"title", "\xff\xfe"}});
  EXPECT_NE(page.html().find("\xef\xbf\xbd"), std::string::npos);
  EXPECT_EQ(escape_html("a\x01"), "a?");
}

TEST_F(PageTest, BadDataThrows) {
  Page page("t", "l");
  EXPECT_THROW(page.table("c", {"a", "b"}, {{"1"}}), std::invalid_argument);
  EXPECT_THROW(page.chart({{"kind", "pie"}}), std::invalid_argument);
}

TEST_F(PageTest, WithoutTheLibraryItSaysWhatToDo) {
  fs::remove(folder_ / "report" / "echarts.min.js");
  try {
    (void)Page("t", "l").html();
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("run 'scripts/bootstrap'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace neotier::report
