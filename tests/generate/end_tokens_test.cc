// Tests which tokens end a generated text.
#include <gmock/gmock.h>

#include <unistd.h>

#include <filesystem>

#include "core/file.h"
#include "generate/model_folder.h"
#include "model/config.h"
#include "support/error_of.h"

namespace lazy {
namespace {
namespace fs = std::filesystem;
using ::testing::ElementsAre;

TEST(EndTokens, AllFiles_AreCombined) {
  const fs::path folder = fs::path(::testing::TempDir()) / ("end_tokens_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  const auto tokenizer = load_tokenizer("bytes");
  ModelConfig config;
  config.eos_token_id = 3;
  const auto ends = [&](const char* of_model, const char* of_generation) {
    write_file_atomic(folder / "config.json", of_model);
    write_file_atomic(folder / "generation_config.json", of_generation);
    return end_tokens(folder, config, *tokenizer);
  };
  EXPECT_THAT(ends(R"({"eos_token_id": [3, 4]})", R"({"eos_token_id": [4, 5], "top_p": NaN})"),
              ElementsAre(3, 4, 5, 257));
  EXPECT_THAT(ends(R"({"eos_token_id": 257})", "{}"), ElementsAre(3, 257));
  EXPECT_THAT(ends("{}", R"({"eos_token_id": null})"), ElementsAre(3, 257));
  EXPECT_THAT(error_of([&] { ends("{}", R"({"eos_token_id": ["x"]})"); }),
              Names({"generation_config.json", "eos_token_id"}));
  fs::remove(folder / "generation_config.json");
  fs::remove(folder / "config.json");
  EXPECT_THAT(end_tokens(folder, config, *tokenizer), ElementsAre(3, 257));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace lazy
