// Generates random tokenizer.json files. For each file that a native tokenizer supports, its results must equal the
// results of the package `tokenizers`. The remaining files are processed by the package.
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/text.h"
#include "data/tokenizers/tokenizer_json.h"
#include "support.h"

namespace lazy {
using namespace testing_support;

namespace {

struct Counts {
  int native = 0, left = 0, refused = 0;
};

// Loads a file with a native tokenizer. Returns null if the native tokenizers do not support the file, and counts the
// unsupported field in `reasons`.
std::unique_ptr<Tokenizer> native(const Folder& folder, const nlohmann::json& tokenizer,
                                  std::map<std::string, int>& reasons) {
  const auto path = folder.write("tokenizer.json", tokenizer.dump());
  const TokenizerJson file(path);
  const SpecialTokens none;
  try {
    if (file.is_sentencepiece()) return make_sentencepiece_json(file, none);
    return make_bpe_tokenizer(read_byte_level(file, none));
  } catch (const NotNative& error) {
    const std::string where = error.reason.substr(path.string().size() + 2);
    ++reasons[where.substr(0, where.find_first_of(" [\""))];
    return nullptr;
  }
}

void compare(const Tokenizer& tokenizer, const nlohmann::json& one) {
  for (size_t i = 0; i < one["texts"].size(); ++i) {
    const auto text = one["texts"][i].get<std::string>();
    const auto ids = tokenizer.encode(text);
    EXPECT_EQ(nlohmann::json(ids), one["ids"][i]) << text << "\n" << one["tokenizer"].dump();
    const std::string decoded = to_valid_utf8(tokenizer.decode(ids));
    // Texts with a broken UTF-8 character are not compared, because one implementation decodes it to one U+FFFD and the
    // other to several.
    if (decoded.find("\uFFFD") == std::string::npos) {
      EXPECT_EQ(decoded, one["decoded"][i].get<std::string>()) << one["tokenizer"].dump();
    }
  }
}

TEST(TokenizerGrammarSlow, NativeTokenizer_MatchesPackageOrRejectsFile) {
  if (!python_has("tokenizers")) GTEST_SKIP() << LAZY_TEST_PYTHON << " has no package `tokenizers`";
  const EnvironmentVariable interpreter("LAZY_PYTHON", LAZY_TEST_PYTHON);
  // LAZY_GRAMMAR_FILES sets the number of files. LAZY_GRAMMAR_SEED sets the seed, which determines the files.
  const char* count = std::getenv("LAZY_GRAMMAR_FILES");
  const char* seed = std::getenv("LAZY_GRAMMAR_SEED");
  const Folder folder;
  const auto out = (folder / "cases").string();
  const std::string command =
      fmt::format("{} {} {} {} > {}", LAZY_TEST_PYTHON, LAZY_SOURCE_DIR "/tests/data/tokenizer_grammar.py",
                  count ? count : "400", seed ? seed : "1", out);
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::istringstream lines(read_file(out));
  Counts counts;
  std::map<std::string, int> reasons;  // for each unsupported field, the number of files
  int through_package = 0;
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json one = nlohmann::json::parse(line);
    const bool valid = one["ids"].is_array();
    std::unique_ptr<Tokenizer> tokenizer;
    try {
      tokenizer = native(folder, one["tokenizer"], reasons);
    } catch (const Error& error) {
      EXPECT_FALSE(valid) << error.what() << "\n" << one["tokenizer"].dump();
      ++counts.refused;
      continue;
    }
    if (tokenizer) {
      ++counts.native;
      if (valid) compare(*tokenizer, one);
      // An error of the Python package `tokenizers` without a line number comes from encoding a text, and is ignored.
      // An error with a line number means that it cannot read the tokenizer file, so the native tokenizer, which has
      // read the file, should have rejected it.
      if (!valid && one.contains("error")) {
        const auto error = one["error"].get<std::string>();
        EXPECT_EQ(error.find("at line"), std::string::npos) << error << "\n" << one["tokenizer"].dump();
      }
      continue;
    }
    ++counts.left;
    const bool random = one["tokenizer"]["model"].contains("dropout") &&
                        one["tokenizer"]["model"]["dropout"].is_number() && one["tokenizer"]["model"]["dropout"] > 0;
    if (valid && !random && through_package < 10) {
      ++through_package;
      std::unique_ptr<Tokenizer> package;
      try {
        package = load_tokenizer((folder / "tokenizer.json").string());
      } catch (const Error& error) {  // an error is correct if the package assigned ids that differ from the file
        EXPECT_THAT(error.what(), testing::HasSubstr("has the id"));
        continue;
      }
      EXPECT_EQ(package->kind(), "tokenizers");
      compare(*package, one);
    }
  }
  std::printf("%d files: %d native, %d left to the package, %d refused\n", counts.native + counts.left + counts.refused,
              counts.native, counts.left, counts.refused);
  for (const auto& [field, files] : reasons) std::printf("%6d %s\n", files, field.c_str());
  // The native tokenizers must support at least one of 8 valid files, so that enough files are compared.
  EXPECT_GE(counts.native, (counts.native + counts.left) / 8);
}

}  // namespace
}  // namespace lazy
