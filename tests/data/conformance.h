// Reads a file of texts and their expected token ids. Texts are separated by a marker line; each text has one line of
// ids.
#pragma once
#include <sstream>
#include <string>
#include <vector>

#include "core/file.h"
#include "data/tokenizer.h"
#include "support.h"

namespace lazy::testing_support {

inline void expect_conformance(const Tokenizer& tokenizer, const std::string& folder, const std::string& name) {
  const std::string marker = "\n__ggml_vocab_test__\n";
  const std::string input = read_file(fs::path(folder) / (name + ".inp"));
  std::istringstream expected(read_file(fs::path(folder) / (name + ".out")));
  int texts = 0;
  for (size_t at = 0; at <= input.size(); ++texts) {
    const size_t end = std::min(input.find(marker, at), input.size());
    const std::string text = input.substr(at, end - at);
    at = end + marker.size();
    std::string line;
    if (!std::getline(expected, line)) break;
    std::istringstream numbers(line);
    std::vector<int32_t> ids;
    for (int32_t id; numbers >> id;) ids.push_back(id);
    EXPECT_EQ(tokenizer.encode(text), ids) << "text " << texts << ": \"" << text << "\"";
  }
  EXPECT_GE(texts, 46);
}

}  // namespace lazy::testing_support
