#include "core/python_json.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lazy {
namespace {

using Json = nlohmann::json;

TEST(PythonJson, StandardJson_IsParsedUnchanged) {
  for (const char* text :
       {R"({"a": [1, -2.5e3, true, null, "NaN", "x\"Infinity\\", "\ud83d\ude00"]})", "3", "\"\"", "[]"})
    EXPECT_EQ(parse_python_json(text), Json::parse(text)) << text;
}

TEST(PythonJson, PythonSpecialNumbers_AreParsed) {
  const Json json =
      parse_python_json(R"({"n": NaN, "list": [0.0, Infinity, -Infinity], "e": 1e999, "m": -1E+999, "s": "1e999"})");
  EXPECT_TRUE(std::isnan(json.at("n").get<double>()));
  EXPECT_EQ(json.at("list").at(1), INFINITY);
  EXPECT_EQ(json.at("list").at(2), -INFINITY);
  EXPECT_EQ(json.at("e"), INFINITY);
  EXPECT_EQ(json.at("m"), -INFINITY);
  EXPECT_EQ(json.at("s"), "1e999");
  EXPECT_EQ(parse_python_json("[1e999, 123456789012345678901234567890]").at(1).get<double>(),
            123456789012345678901234567890.0);
}

TEST(PythonJson, LoneSurrogate_BecomesReplacementCharacter) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(parse_python_json(R"("a \ud83d b")"), "a " + r + " b");
  EXPECT_EQ(parse_python_json(R"("\udc00")"), r);
  EXPECT_EQ(parse_python_json(R"("\ud83d\ud83d\ude00")"), r + "😀");
  EXPECT_EQ(parse_python_json(R"("\ud83d\n\\ud83d")"), r + "\n\\ud83d");
  EXPECT_EQ(parse_python_json(R"({"\ud83d": NaN})").begin().key(), r);
}

TEST(PythonJson, InvalidText_IsDiscarded) {
  for (const char* text : {"", "{", R"({"a": "b)", "[1,]", "NaNa", "nan", "-NaN", "+Infinity", "[Infinity", "{'a': 1}",
                           "\"\\ud83", "\"\\", "[NaN lazy-number:]", "1e999e", "01", "\"\\ud83d\" x"})
    EXPECT_TRUE(parse_python_json(text).is_discarded()) << text;
}

}  // namespace
}  // namespace lazy
