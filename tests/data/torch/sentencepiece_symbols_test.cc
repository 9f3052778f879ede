// SentencePiece and LibTorch both define FLAGS_minloglevel (with different types), protobuf and other symbols. One
// program must not contain the same symbol from both, because the linker would merge the two definitions without a
// warning.
#include <c10/util/Logging.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "data/tokenizers/sentencepiece.h"

C10_DECLARE_int(minloglevel);

namespace lazy {
namespace {

std::set<std::string> names(const std::string& command, const std::string& kinds) {
  std::set<std::string> found;
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return found;
  char line[1 << 16];
  while (std::fgets(line, sizeof line, pipe)) {
    std::istringstream fields(line);
    std::string address, kind, name;
    if (fields >> address >> kind >> name && kinds.find(kind) != std::string::npos) found.insert(name);
  }
  pclose(pipe);
  return found;
}

}  // namespace

TEST(SentencePieceSymbols, Training_KeepsFlagsOfLibTorch) {
  const int former = FLAGS_minloglevel;
  FLAGS_minloglevel = 1234567;
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i) texts.push_back("the quick brown fox jumps over dog number " + std::to_string(i));
  // this sets SentencePiece's variable FLAGS_minloglevel and must not change LibTorch's
  const auto tokenizer = train_sentencepiece(texts, 320);
  EXPECT_EQ(FLAGS_minloglevel, 1234567);
  FLAGS_minloglevel = former;
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("the fox")), "the fox");
}

TEST(SentencePieceSymbols, Symbols_AreNotSharedWithLibTorch) {
  if (std::system("nm --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "nm is not installed";
  // Compares the symbols that LibTorch exports, weak or strong, with the symbols of SentencePiece. No strong definition
  // of SentencePiece may be among them. Weak definitions may be shared if they are templates of the C++ library, which
  // all C++ programs share; they must not belong to the namespaces below.
  const auto torch = names("nm -D --defined-only " LAZY_TORCH_LIBRARIES, "TDBRWVuGS");
  const auto strong = names("nm --defined-only --extern-only " LAZY_SENTENCEPIECE_LIBRARY, "TDBRGS");
  const auto weak = names("nm --defined-only --extern-only " LAZY_SENTENCEPIECE_LIBRARY, "WVu");
  ASSERT_GT(torch.size(), 1000u);
  ASSERT_GT(strong.size(), 500u);
  EXPECT_TRUE(torch.contains("FLAGS_minloglevel"))
      << "LibTorch no longer exports the symbol whose clash this test checks";
  for (const std::string& name : strong) EXPECT_FALSE(torch.contains(name)) << name;
  for (const std::string& name : weak) {
    for (const char* space : {"6google8protobuf", "4absl", "13sentencepiece", "FLAGS_"}) {
      EXPECT_EQ(name.find(space), std::string::npos) << name;
    }
  }
}

}  // namespace lazy
