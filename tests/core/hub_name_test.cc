#include "core/hub_name.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "support/error_of.h"

namespace lazy {

TEST(HubName, ModelName_HintContainsDownloadCommand) {
  EXPECT_THAT(hub_download_hint("gpt2"),
              IsMessage("; if 'gpt2' is a model on the Hugging Face Hub, download it: `hf download gpt2 --local-dir "
                        "gpt2`"));
  EXPECT_THAT(hub_download_hint("Qwen/Qwen3-0.6B"),
              Names({std::string("hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B")}));
}

TEST(HubName, Path_HasNoHint) {
  for (const char* path :
       {"", ".", "..", "./gpt2", "/models/gpt2", "runs/lazy/model", "../gpt2", "gpt2/", "a b", "~/x"})
    EXPECT_EQ(hub_download_hint(path), "") << path;
  EXPECT_TRUE(is_hub_name("gpt2"));
  EXPECT_FALSE(is_hub_name("gpt2.gguf"));
  EXPECT_FALSE(is_hub_name("./gpt2"));
}

TEST(HubName, ExistingFolder_HasNoHint) {
  const auto folder = std::filesystem::temp_directory_path() / "lazy-hub-name";
  std::filesystem::create_directories(folder / "existing");
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder);
  EXPECT_EQ(hub_download_hint("existing"), "");
  EXPECT_EQ(hub_download_hint("existing/model"), "");  // a path below the existing folder, so no hint is needed
  EXPECT_NE(hub_download_hint("missing/model"), "");
  std::filesystem::current_path(before);
  std::filesystem::remove_all(folder);
}

}  // namespace lazy
