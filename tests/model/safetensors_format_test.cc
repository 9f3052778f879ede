// Tests of the safetensors parser with damaged and malicious files.
#include "model/safetensors_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/error_of.h"

namespace lazy {
namespace {

std::string container(const std::string& header, size_t data_bytes, uint64_t length) {
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(length >> (8 * i));
  return out + header + std::string(data_bytes, 'x');
}
std::string container(const std::string& header, size_t data_bytes) {
  return container(header, data_bytes, header.size());
}

std::string message(const std::string& content) {
  return error_of([&] { parse_safetensors(content, "m.safetensors"); });
}

const char kTwo[] = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                    R"("b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}})";

TEST(SafetensorsFormat, Entries_AreReadInByteOrder) {
  const SafetensorsHeader header = parse_safetensors(container(kTwo, 26), "m");
  ASSERT_EQ(header.entries.size(), 2u);
  EXPECT_EQ(header.entries[0].name, "a");
  EXPECT_EQ(header.entries[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header.entries[1].name, "b");
  EXPECT_TRUE(header.entries[1].shape.empty());
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.data_start, 8 + std::string(kTwo).size());
}

TEST(SafetensorsFormat, FormattedHeader_RoundTrips) {
  const std::vector<SafetensorsEntry> entries = {{"x \"quoted\" \n", "I64", {0, 4}, 0, 0}, {"y", "U8", {5}, 0, 5}};
  const std::string text = format_safetensors_header({{"k", "v"}}, entries);
  EXPECT_EQ(text.size() % 8, 0u);
  const SafetensorsHeader header = parse_safetensors(text + "12345", "m");
  ASSERT_EQ(header.entries.size(), 2u);
  EXPECT_EQ(header.entries[0].name, entries[0].name);
  EXPECT_EQ(header.entries[0].shape, entries[0].shape);
  EXPECT_EQ(header.entries[1].end, 5u);
}

TEST(SafetensorsFormat, TruncationAtAnyByte_IsRejected) {
  const std::string whole = container(kTwo, 26);
  for (size_t n = 0; n < whole.size(); ++n) {
    EXPECT_THAT(message(whole.substr(0, n)), Names({"m.safetensors"})) << n;
  }
  EXPECT_THAT(message(whole.substr(0, whole.size() - 1)),
              IsMessage("safetensors: m.safetensors: the file is truncated or damaged: expected 26 bytes of tensor "
                        "data, found 25"));
  EXPECT_EQ(message(whole), "");
  EXPECT_THAT(message(whole + "x"), Names({"m.safetensors", 26, 27}));
}

TEST(SafetensorsFormat, FlippedBits_AreReadOrRejected) {
  const std::string whole = container(kTwo, 26);
  int refused = 0;
  for (size_t i = 0; i < whole.size() - 26; ++i) {
    for (const int bit : {0x01, 0x08, 0x80}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ bit);
      refused += !message(damaged).empty();  // any exception that is not an Error fails the test
    }
  }
  EXPECT_GT(refused, 300);
}

TEST(SafetensorsFormat, HeaderLength_IsCheckedAgainstFileSize) {
  EXPECT_THAT(message(container(kTwo, 26, uint64_t{1} << 60)),
              Names({"m.safetensors", "header", std::string(kTwo).size() + 26, uint64_t{1} << 60}));
  EXPECT_THAT(message(container(kTwo, 26, UINT64_MAX)),
              Names({"m.safetensors", "header", std::string(kTwo).size() + 26, "18446744073709551615"}));
}

struct Case {
  const char* what;
  const char* header;
  size_t data_bytes;
  std::vector<std::string> named;
};

TEST(SafetensorsFormat, HostileHeaders_AreRejected) {
  const std::vector<Case> cases = {
      {"no JSON", "{nonsense", 0, {"header", "JSON"}},
      {"not an object", "[1]", 0, {"header", "JSON", "[1]"}},
      {"twice",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2,
       {"header", "'a'"}},
      {"field twice",
       R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})",
       1,
       {"header", "'dtype'"}},
      {"deep", R"({"a":{"shape":[[[[1]]]]}})", 0, {"header"}},
      {"no dtype", R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1, {"'a'", "dtype"}},
      {"unknown dtype", R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4, {"'a'", "dtype", "'F31'"}},
      {"negative size", R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, {"'a'", "shape", "-1"}},
      {"fractional size", R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1, {"'a'", "shape", "1.5"}},
      {"huge size",
       R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]}})",
       1,
       {"'a'", "shape", "18446744073709551615", "2^63"}},
      {"overflowing product",
       R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})",
       0,
       {"'a'", "shape", "[4294967296, 4294967296]", "F32"}},
      {"half a byte", R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1, {"'a'", "shape", "[3]", "F4"}},
      {"wrong length",
       R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",
       4,
       {"'a'", "data_offsets", "8", "F32", "[2]", "4"}},
      {"one offset", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, {"'a'", "data_offsets", "[0]"}},
      {"backwards", R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[1,0]}})", 1, {"'a'", "data_offsets", "[1, 0]"}},
      {"beyond the file", R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})", 4, {"truncated", "9 bytes", "4"}},
      {"overlap",
       R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3,
       {"'b'", "data_offsets", "2", "1"}},
      {"gap",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
       3,
       {"'b'", "data_offsets", "1", "2"}},
      {"metadata", R"({"__metadata__":{"format":3}})", 0, {"__metadata__", "format", "3"}},
  };
  for (const Case& c : cases) {
    const std::string text = message(container(c.header, c.data_bytes));
    EXPECT_THAT(text, Names({"m.safetensors"})) << c.what;
    EXPECT_THAT(text, NamesMatcher(c.named)) << c.what;
    EXPECT_EQ(text.find('\n'), std::string::npos) << c.what;
  }
}

}  // namespace
}  // namespace lazy
