// Tests of tensors in files: all dtypes, sharded files, damaged files, and compatibility with the Python library.
#include "model/safetensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/temporary_folder.h"
#include "support/error_of.h"

namespace lazy {
namespace {

using testing::TemporaryFolder;

NamedTensors samples() {
  at::Generator generator = at::detail::createCPUGenerator(7);
  const auto random = [&](at::IntArrayRef shape, at::ScalarType type) {
    return at::randn(shape, generator, at::TensorOptions().dtype(at::kFloat)).mul(50).to(type);
  };
  return {{"bytes", random({3}, at::kChar)},
          {"wide", random({2, 5}, at::kDouble)},
          {"half", random({7}, at::kHalf)},
          {"brain", random({3, 3}, at::kBFloat16)},
          {"plain", random({4, 1, 2}, at::kFloat)},
          {"long", random({2}, at::kLong)},
          {"flag", random({5}, at::kBool)},
          {"scalar", random({}, at::kFloat)},
          {"empty", at::empty({0, 3})},
          {"strided", random({6, 4}, at::kFloat).t()}};
}

TEST(Safetensors, EveryDtypeAndShape_RoundTrips) {
  const TemporaryFolder folder;
  const NamedTensors tensors = samples();
  write_safetensors(folder / "a.safetensors", tensors);
  const auto back = read_safetensors(folder / "a.safetensors");
  ASSERT_EQ(back.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(back.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(back.at(name), tensor)) << name;
  }
  write_safetensors(folder / "b.safetensors", tensors);
  EXPECT_EQ(testing::read_text(folder / "a.safetensors"), testing::read_text(folder / "b.safetensors"));
  const SafetensorsFile file(folder / "a.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
}

TEST(Safetensors, View_OutlivesFileObject) {
  const TemporaryFolder folder;
  at::Tensor view;
  {
    write_safetensors(folder / "a.safetensors", {{"x", at::arange(1000, at::kFloat)}});
    const SafetensorsFile file(folder / "a.safetensors");
    view = file.tensor("x");
  }
  EXPECT_EQ(view.sum().item<float>(), 499500);
}

TEST(Safetensors, UnalignedData_IsCopied) {
  const TemporaryFolder folder;
  std::string header = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  header.append(9 - header.size() % 8, ' ');  // the data starts at an odd address
  std::string content(8, '\0');
  content[0] = static_cast<char>(header.size());
  const float values[2] = {1.5f, -2.0f};
  content += header + std::string(reinterpret_cast<const char*>(values), sizeof values);
  testing::write_text(folder / "a.safetensors", content);
  const SafetensorsFile file(folder / "a.safetensors");
  EXPECT_EQ(file.tensor("x")[1].item<float>(), -2.0f);
}

TEST(Safetensors, ShardsAndIndex_RoundTrip) {
  const TemporaryFolder folder;
  const NamedTensors tensors = samples();
  write_safetensors_sharded(folder.path(), "model", tensors, 64);
  EXPECT_FALSE(std::filesystem::exists(folder / "model.safetensors"));
  const SafetensorsFile file(folder / "model.safetensors.index.json");
  ASSERT_EQ(file.names().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(at::equal(file.tensor(name), tensor)) << name;
  // Now save in the sharded form. This must remove the files of the first save.
  write_safetensors_sharded(folder.path(), "model", tensors);
  size_t files = 0;
  for (const auto& item : std::filesystem::directory_iterator(folder.path())) files += item.is_regular_file();
  EXPECT_EQ(files, 1u);
  write_safetensors_sharded(folder.path(), "model", tensors, 64);
  EXPECT_FALSE(std::filesystem::exists(folder / "model.safetensors"));
}

TEST(Safetensors, InvalidIndexes_AreRejected) {
  const TemporaryFolder folder;
  write_safetensors(folder / "s.safetensors", {{"x", at::zeros({2})}});
  const auto index = [&](const std::string& text) {
    testing::write_text(folder / "m.safetensors.index.json", text);
    return error_of([&] { SafetensorsFile file(folder / "m.safetensors.index.json"); });
  };
  EXPECT_EQ(index(R"({"weight_map":{"x":"s.safetensors"}})"), "");
  EXPECT_THAT(index("{"), Names({"m.safetensors.index.json", "JSON"}));
  EXPECT_THAT(index("[]"), Names({"m.safetensors.index.json", "weight_map"}));
  EXPECT_THAT(index(R"({"weight_map":{"x":3}})"), Names({"m.safetensors.index.json", "weight_map", "x"}));
  EXPECT_THAT(index(R"({"weight_map":{"x":"../s.safetensors"}})"), Names({"weight_map", "x", "../s.safetensors"}));
  EXPECT_THAT(index(R"({"weight_map":{"y":"s.safetensors"}})"), Names({"weight_map", "y", "s.safetensors"}));
  EXPECT_THAT(index(R"({"weight_map":{"x":"none.safetensors"}})"), Names({(folder / "none.safetensors").string()}));
}

TEST(Safetensors, TruncatedFiles_AreRejected) {
  const TemporaryFolder folder;
  write_safetensors(folder / "a.safetensors", samples());
  const std::string whole = testing::read_text(folder / "a.safetensors");
  for (size_t n = 0; n < whole.size(); n += 3) {
    testing::write_text(folder / "t.safetensors", whole.substr(0, n));
    EXPECT_THAT(error_of([&] { SafetensorsFile file(folder / "t.safetensors"); }), Names({"t.safetensors"})) << n;
  }
}

TEST(Safetensors, Writer_RejectsRepeatedNamesAndUnsupportedDtypes) {
  const TemporaryFolder folder;
  const at::Tensor x = at::zeros({1});
  EXPECT_THAT(error_of([&] {
                write_safetensors(folder / "a", {{"x", x}, {"x", x}});
              }),
              Names({(folder / "a").string(), "x"}));
  EXPECT_THAT(error_of([&] {
                write_safetensors(folder / "a", {{"x", x.to(at::kComplexDouble)}});
              }),
              Names({"x", "ComplexDouble"}));
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
}

TEST(SafetensorsSlow, Files_AreCompatibleWithPython) {
  const std::string missing = testing::missing_python_modules("safetensors.torch");
  if (!missing.empty()) GTEST_SKIP() << missing;
  const TemporaryFolder folder;
  const NamedTensors tensors = samples();
  write_safetensors(folder / "ours.safetensors", tensors);
  const auto [status, out] = testing::run_python(
      folder, R"(
import sys
from safetensors.torch import load_file, save_file
from safetensors import safe_open
tensors = load_file(sys.argv[1])
with safe_open(sys.argv[1], "pt") as f: assert f.metadata() == {"format": "pt"}, f.metadata()
save_file(tensors, sys.argv[2], {"made": "by python"})
)",
      fmt::format("'{}' '{}'", (folder / "ours.safetensors").string(), (folder / "theirs.safetensors").string()));
  ASSERT_EQ(status, 0) << out;
  const auto back = read_safetensors(folder / "theirs.safetensors");
  ASSERT_EQ(back.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(back.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(back.at(name), tensor)) << name;
  }
  EXPECT_EQ(SafetensorsFile(folder / "theirs.safetensors").metadata().at("made"), "by python");
}

}  // namespace
}  // namespace lazy
