// The container's parser against damaged and hostile files.
#include "model/safetensors_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace lazy {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string container(const std::string& header, size_t data_bytes, uint64_t length) {
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(length >> (8 * i));
  return out + header + std::string(data_bytes, 'x');
}
std::string container(const std::string& header, size_t data_bytes) {
  return container(header, data_bytes, header.size());
}

std::string message(const std::string& content) {
  try {
    parse_safetensors(content, "m.safetensors");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

const char kTwo[] = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                    R"("b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}})";

TEST(SafetensorsFormat, ReadsEntriesInOrderOfTheirBytes) {
  const SafetensorsHeader header = parse_safetensors(container(kTwo, 26), "m");
  ASSERT_EQ(header.entries.size(), 2u);
  EXPECT_EQ(header.entries[0].name, "a");
  EXPECT_EQ(header.entries[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header.entries[1].name, "b");
  EXPECT_TRUE(header.entries[1].shape.empty());
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.data_start, 8 + std::string(kTwo).size());
}

TEST(SafetensorsFormat, FormattedHeaderParsesToTheSame) {
  const std::vector<SafetensorsEntry> entries = {{"x \"quoted\" \n", "I64", {0, 4}, 0, 0}, {"y", "U8", {5}, 0, 5}};
  const std::string text = format_safetensors_header({{"k", "v"}}, entries);
  EXPECT_EQ(text.size() % 8, 0u);
  const SafetensorsHeader header = parse_safetensors(text + "12345", "m");
  ASSERT_EQ(header.entries.size(), 2u);
  EXPECT_EQ(header.entries[0].name, entries[0].name);
  EXPECT_EQ(header.entries[0].shape, entries[0].shape);
  EXPECT_EQ(header.entries[1].end, 5u);
}

TEST(SafetensorsFormat, TruncationAtEveryByteIsAnError) {
  const std::string whole = container(kTwo, 26);
  for (size_t n = 0; n < whole.size(); ++n) {
    const std::string text = message(whole.substr(0, n));
    EXPECT_THAT(text, HasSubstr("m.safetensors")) << n;
    EXPECT_THAT(text, HasSubstr("expected")) << n;
    EXPECT_THAT(text, HasSubstr("found")) << n;
  }
  EXPECT_EQ(message(whole), "");
  EXPECT_THAT(message(whole + "x"), AllOf(HasSubstr("26"), HasSubstr("27")));
}

TEST(SafetensorsFormat, EveryFlippedByteIsReadOrRefusedCleanly) {
  const std::string whole = container(kTwo, 26);
  int refused = 0;
  for (size_t i = 0; i < whole.size() - 26; ++i) {
    for (const int bit : {0x01, 0x08, 0x80}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ bit);
      refused += !message(damaged).empty();  // anything but an Error escapes and fails the test
    }
  }
  EXPECT_GT(refused, 300);
}

TEST(SafetensorsFormat, HeaderLengthIsCheckedAgainstTheFile) {
  EXPECT_THAT(message(container(kTwo, 26, uint64_t{1} << 60)),
              AllOf(HasSubstr("header length"), HasSubstr("1152921504606846976"), HasSubstr("at most")));
  EXPECT_THAT(message(container(kTwo, 26, UINT64_MAX)), HasSubstr("18446744073709551615"));
}

struct Case {
  const char* what;
  const char* header;
  size_t data_bytes;
  std::vector<const char*> parts;
};

TEST(SafetensorsFormat, HostileHeadersAreNamedErrors) {
  const std::vector<Case> cases = {
      {"no JSON", "{nonsense", 0, {"expected JSON"}},
      {"not an object", "[1]", 0, {"expected a JSON object", "[1]"}},
      {"twice",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2,
       {"'a' appears twice"}},
      {"field twice",
       R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})",
       1,
       {"'dtype' appears twice"}},
      {"deep", R"({"a":{"shape":[[[[1]]]]}})", 0, {"nested deeper"}},
      {"no dtype", R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1, {"'a'", "dtype", "found nothing"}},
      {"unknown dtype", R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4, {"dtype", "F31"}},
      {"negative size",
       R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})",
       1,
       {"shape", "non-negative", "-1"}},
      {"fractional size", R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1, {"shape", "1.5"}},
      {"huge size",
       R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]}})",
       1,
       {"shape", "2^63"}},
      {"overflowing product",
       R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})",
       0,
       {"shape", "whole number of bytes"}},
      {"half a byte", R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1, {"whole number of bytes"}},
      {"wrong length", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, {"expected 8 bytes", "found 4"}},
      {"one offset", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, {"data_offsets", "[begin, end]"}},
      {"backwards", R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[1,0]}})", 1, {"begin <= end"}},
      {"beyond the file", R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})", 4, {"<= 4", "[0, 9]"}},
      {"overlap",
       R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3,
       {"'b'", "begin at 2", "found 1"}},
      {"gap",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
       3,
       {"'b'", "begin at 1", "found 2"}},
      {"metadata", R"({"__metadata__":{"format":3}})", 0, {"__metadata__", "string"}},
  };
  for (const Case& c : cases) {
    const std::string text = message(container(c.header, c.data_bytes));
    EXPECT_THAT(text, HasSubstr("safetensors: m.safetensors: ")) << c.what;
    for (const char* part : c.parts) EXPECT_THAT(text, HasSubstr(part)) << c.what;
    EXPECT_EQ(text.find('\n'), std::string::npos) << c.what;
  }
}

}  // namespace
}  // namespace lazy
