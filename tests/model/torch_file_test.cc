// pytorch_model.bin: what PyTorch wrote is read, nothing in it is run, and damaged files are refused with one line.
#include "model/torch_file/torch_file.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/safetensors.h"
#include "model/torch_file/format.h"
#include "support/error_of.h"
#include "support/torch_file_bytes.h"
#include "temporary_folder.h"

namespace lazy {
namespace {

using testing::dict_of;
using testing::global;
using testing::integer;
using testing::item;
using testing::TemporaryFolder;
using testing::TensorPickle;
using testing::torch_file;

std::string refusal(const std::string& content) {
  return error_of([&] { parse_torch_file(content, "m.bin"); });
}
std::string refused_tensor(const TensorPickle& tensor) { return refusal(torch_file(dict_of(item("w", tensor)))); }

constexpr char kSave[] = R"(
import collections, sys, torch
from pathlib import Path
from safetensors.torch import save_file
folder = Path(sys.argv[1])
torch.manual_seed(0)
base = torch.randn(7, 11)
tensors = {"plain": torch.randn(3, 5), "transposed": base.t(), "part": base[2:5, 1::3], )"
                         R"("scalar": torch.tensor(2.5), "none": torch.zeros(0, 4),
           "same": base, "vector": torch.randn(1)}
for dtype in ("float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool"):
    tensors[dtype] = (torch.randn(3, 2) * 40).to(getattr(torch, dtype))
for name, protocol in (("2", 2), ("4", 4), ("5", 5)):
    torch.save(tensors, folder / f"{name}.bin", pickle_protocol=protocol)
module = torch.nn.ModuleDict({name: torch.nn.Linear(4, 3) for name in "ab"})
torch.save(module.state_dict(), folder / "module.bin")  # an OrderedDict with attributes
save_file({n: t.clone().contiguous() for n, t in tensors.items()}, folder / "tensors.safetensors")
save_file(dict(module.state_dict()), folder / "module.safetensors")
torch.save(tensors, folder / "older.bin", _use_new_zipfile_serialization=False)
torch.save(module, folder / "code.bin")
torch.save({"w": torch.nn.Parameter(base)}, folder / "parameter.bin")
torch.save({"w": base, "step": 3}, folder / "number.bin")
)";

TEST(TorchFileSlow, WhatPyTorchSavesIsRead) {
  const std::string missing = testing::missing_python_modules("torch, safetensors");
  if (!missing.empty()) GTEST_SKIP() << missing;
  const TemporaryFolder folder;
  const auto [status, out] = testing::run_python(folder, kSave, fmt::format("'{}'", folder.path().string()));
  ASSERT_EQ(status, 0) << out;
  for (const auto& [file, same] :
       {std::pair{"2.bin", "tensors"}, {"4.bin", "tensors"}, {"5.bin", "tensors"}, {"module.bin", "module"}}) {
    const auto read = open_torch_file(folder / file);
    const auto expected = read_safetensors(folder / fmt::format("{}.safetensors", same));
    ASSERT_EQ(read->names().size(), expected.size()) << file;
    for (const auto& [name, tensor] : expected) {
      const at::Tensor ours = read->tensor(name);
      EXPECT_TRUE(at::equal(ours, tensor) && ours.scalar_type() == tensor.scalar_type()) << file << " " << name;
      EXPECT_EQ(read->info(name).shape, tensor.sizes().vec());
      EXPECT_EQ(read->where(name), (folder / file).string());
    }
    EXPECT_THAT(error_of([&] { read->tensor("other"); }), Names({std::string(file), "other"}));
  }
  const auto refused = [&](const char* file) { return error_of([&] { open_torch_file(folder / file); }); };
  EXPECT_THAT(refused("older.bin"), Names({"older.bin", "torch.save", "1.6"}));
  EXPECT_THAT(refused("code.bin"), Names({"code.bin", std::string("torch.nn.modules.container ModuleDict")}));
  EXPECT_THAT(refused("parameter.bin"), Names({"parameter.bin", std::string("torch._utils _rebuild_parameter")}));
  EXPECT_THAT(refused("number.bin"), Names({"number.bin", "step", "tensor", "integer"}));
}

TEST(TorchFile, BothFormsOfTheDirectoryAreRead) {
  for (const bool wide : {false, true}) {
    const auto entries = parse_torch_file(
        torch_file(dict_of(item("w", {}) + item("v", {.offset = 2, .size = {2, 2}, .stride = {1, 2}})), wide), "m.bin");
    ASSERT_EQ(entries.size(), 2);
    EXPECT_EQ(entries[0].name, "v");
    EXPECT_EQ(entries[0].begin, entries[1].begin + 8);
    EXPECT_EQ(entries[0].elements, 4);
    EXPECT_EQ(entries[1].dtype, "F32");
    EXPECT_EQ(entries[1].shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(entries[1].elements, 6);
  }
}

// Pickles that would run something, were they loaded.
TEST(TorchFile, NothingIsRun) {
  const auto of = [](const std::string& pickle) { return refusal(torch_file(pickle)); };
  const std::string call = testing::text("touch /tmp/x") + "\x85R.";
  EXPECT_THAT(
      of("\x80\x02" + global("os", "system") + call),
      IsMessage("pytorch file: m.bin: global 'os system': expected tensors and plain values, nothing else is run "
                "or imported"));
  EXPECT_THAT(of("\x80\x02" + global("builtins", "eval") + call), Names({std::string("builtins eval")}));
  EXPECT_THAT(of("\x80\x02" + global("torch._utils", "_rebuild_parameter") + call),
              Names({std::string("torch._utils _rebuild_parameter")}));
  EXPECT_THAT(of("\x80\x04" + testing::text("posix") + testing::text("system") + "\x93" + call),
              Names({std::string("posix system")}));
  EXPECT_THAT(of("\x80\x02" + global("torch", "FloatStorage") + call),
              Names({"m.bin", "REDUCE", std::string("torch FloatStorage"), 1}));
  EXPECT_THAT(of("\x80\x02" + global("collections", "OrderedDict") + call),
              Names({"m.bin", "REDUCE", std::string("collections OrderedDict"), 1}));
  for (const int opcode : {int{'i'}, int{'o'}, 0x81, 0x92, 0x82, int{'P'}, int{'p'}, int{'S'}, int{'I'}, int{'l'},
                           int{'0'}, int{'2'}, int{'1'}, 0x8f, 0x97, 0xff}) {
    EXPECT_THAT(of(std::string("\x80\x02]") + static_cast<char>(opcode) + "os\nsystem\n."),
                Names({"m.bin", 3, fmt::format("0x{:02x}", opcode)}));
  }
}

TEST(TorchFile, TensorsOutsideTheirStorageAreRefused) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  EXPECT_EQ(refused_tensor({}), "");
  EXPECT_EQ(refused_tensor({.size = {0, 3}}), "");
  EXPECT_EQ(refused_tensor({.elements = 1000}), "");  // what the file has counts, not what it says
  EXPECT_THAT(refused_tensor({.size = {2, 4}, .stride = {4, 1}}), Names({"m.bin", "'w'", 6, 0, 8}));
  // The message names the elements of the storage, the offset and the elements of the tensor.
  EXPECT_THAT(refused_tensor({.offset = 1}), Names({"'w'", 6, 1}));
  EXPECT_THAT(refused_tensor({.offset = -1}), Names({"'w'", 6, -1}));
  EXPECT_THAT(refused_tensor({.offset = kHuge}), Names({"'w'", 6, kHuge}));
  EXPECT_THAT(refused_tensor({.offset = 7, .size = {0}, .stride = {1}}), Names({"'w'", 6, 7, 0}));
  EXPECT_THAT(refused_tensor({.size = {kHuge, 3}, .stride = {3, 1}}), Names({"'w'", 6, 0, "2^63"}));
  EXPECT_THAT(refused_tensor({.size = {kHuge, 8}, .stride = {0, 0}}), Names({"'w'", 6, 0, "2^63"}));
  EXPECT_THAT(refused_tensor({.size = {7}, .stride = {0}}), Names({"'w'", 6, 0, 7}));
  EXPECT_THAT(refused_tensor({.size = {-1, 3}}), Names({"'w'", "size", 0}));
  EXPECT_THAT(refused_tensor({.stride = {3, -1}}), Names({"'w'", "stride", 0}));
  EXPECT_THAT(refused_tensor({.stride = {1}}), Names({"'w'", "stride", "size"}));
  EXPECT_THAT(refused_tensor({.type = "DoubleStorage"}), Names({"'w'", 3, 0, 6}));
  EXPECT_THAT(refused_tensor({.type = "QInt8Storage"}), Names({std::string("torch QInt8Storage")}));
  EXPECT_THAT(refused_tensor({.key = "../1"}), Names({"'w'", "data/../1"}));
}

TEST(TorchFile, DamagedFilesAreRefused) {
  const std::string sound = torch_file(dict_of(item("w", {})));
  for (size_t size = 0; size < sound.size(); ++size) EXPECT_NE(refusal(sound.substr(0, size)), "") << size;
  const auto of = [](const std::string& pickle) { return refusal(torch_file(pickle)); };
  // The message names the byte of the pickle at which reading stops: after the opcode and what it reads.
  EXPECT_THAT(of("\x80\x02}"), Names({"m.bin", 3}));        // ends without STOP
  EXPECT_THAT(of("\x80\x02."), Names({"m.bin", 3}));        // STOP without a value
  EXPECT_THAT(of("\x80\x02}}."), Names({"m.bin", 5}));      // a second value is left
  EXPECT_THAT(of("\x80\x02(u."), Names({"m.bin", 4}));      // SETITEMS without a dict
  EXPECT_THAT(of("\x80\x02]t."), Names({"m.bin", 4}));      // TUPLE without a mark
  EXPECT_THAT(of("\x80\x02}(Nu."), Names({"m.bin", 6}));    // a key without a value
  EXPECT_THAT(of("\x80\x02}h\x07."), Names({"m.bin", 5}));  // nothing has been stored under this number
  EXPECT_THAT(of("\x80\x01}."), Names({"m.bin", 2, 5}));    // an older protocol
  EXPECT_THAT(of("\x80\x02X" + testing::little(0xffffffff, 4) + "abc."), Names({"m.bin", 7}));
  EXPECT_THAT(of("\x80\x02]."), Names({"m.bin", "dict", "list"}));
  EXPECT_THAT(of("\x80\x02}q\x01(h\x01h\x01u."), Names({"m.bin", "dict"}));  // a dict whose key is itself
  EXPECT_THAT(of(dict_of(testing::text("w") + "K\x01")), Names({"m.bin", "w", "tensor", "integer"}));
  EXPECT_THAT(refusal("something else"), Names({"m.bin", "torch.save", "1.6"}));
  EXPECT_THAT(
      refusal("\x80\x02}."),
      IsMessage("pytorch file: m.bin: expected the zip format of torch.save since PyTorch 1.6, found the format "
                "before it: load it with PyTorch and save it again"));
  EXPECT_THAT(refusal(testing::stored_zip({{"archive/data.pkl", "}."}}, false, 8)),
              Names({"m.bin", "archive/data.pkl", 8}));
  EXPECT_THAT(refusal(testing::stored_zip({{"archive/other", "}."}})), Names({"m.bin", "data.pkl"}));
  EXPECT_THAT(refusal(testing::stored_zip({{"a/data.pkl", "}."}, {"a/data.pkl", "}."}})),
              Names({"m.bin", "a/data.pkl"}));
  EXPECT_THAT(refusal(testing::stored_zip({{"a/data.pkl", "}."}, {"a/byteorder", "big"}})),
              Names({"m.bin", "byteorder", "little"}));
}

// Each a little program that makes much of few bytes.
TEST(TorchFile, SmallPicklesStaySmall) {
  std::string deep = "\x80\x02)";
  for (int n = 0; n < 500000; ++n) deep += "\x85";
  EXPECT_THAT(refusal(torch_file(deep + ".")), Names({"m.bin", "dict", "tuple"}));
  EXPECT_THAT(refusal(torch_file(std::string(size_t{9} << 20, 'N'))), Names({"m.bin", size_t{9} << 20}));
}

TEST(TorchFile, AnIndexNamesItsFiles) {
  const TemporaryFolder folder;
  testing::write_text(folder / "a.bin", torch_file(dict_of(item("w", {}))));
  const auto opened = [&](const std::string& map) {
    testing::write_text(folder / "pytorch_model.bin.index.json", "{\"weight_map\": {" + map + "}}");
    return error_of([&] { open_torch_file(folder / "pytorch_model.bin.index.json"); });
  };
  EXPECT_EQ(opened(R"("w": "a.bin")"), "");
  EXPECT_THAT(opened(R"("v": "a.bin")"), Names({"pytorch_model.bin.index.json", "weight_map", "v", "a.bin"}));
  EXPECT_THAT(opened(R"("w": "../a.bin")"), Names({"pytorch_model.bin.index.json", "weight_map", "w", "../a.bin"}));
}

}  // namespace
}  // namespace lazy
