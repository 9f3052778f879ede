#include "core/known_names.h"

#include <gtest/gtest.h>

#include "core/config.h"
#include "support/error_of.h"

namespace lazy {

struct Named {
  const char* name;
};

const std::vector<std::string> kKnown = names_of(std::vector<Named>{{"steps"}, {"seed"}});

TEST(KnownNames, DidYouMean_SuggestsClosestName) {
  EXPECT_EQ(kKnown, (std::vector<std::string>{"steps", "seed"}));
  EXPECT_TRUE(contains(kKnown, "seed"));
  EXPECT_FALSE(contains(kKnown, "see"));
  EXPECT_THAT(did_you_mean("stesp", kKnown), Names({"steps"}));
  EXPECT_EQ(did_you_mean("zzzzzz", kKnown), "");
}

TEST(KnownNames, UnknownName_ErrorContainsLocationListAndWord) {
  EXPECT_EQ(error_of([] { expect_known("a.toml key", "seed", kKnown); }), "");
  EXPECT_THAT(error_of([] { expect_known("a.toml key", "stesp", kKnown); }),
              Names({"config", "a.toml", "key", "steps", "seed", "stesp"}));
  EXPECT_THAT(error_of([] { fail_unknown("lab", "--block", "zzzzzz", kKnown, "a block"); }),
              Names({"lab", "--block", "block", "steps", "seed", "zzzzzz"}));
  Config config = Config::parse("[model]\nkey = \"sed\"\n", "a.toml");
  EXPECT_THAT(error_of([&] { expect_known(config.section("model"), "key", "sed", kKnown, "a key"); }),
              Names({"a.toml:2", "model.key", "steps", "seed", "sed"}));
}

}  // namespace lazy
