// Compares the tokenizers with Hugging Face's packages, if they are installed.
#include <nlohmann/json.hpp>

#include "core/text.h"
#include "data/tokenizers/sentencepiece.h"
#include "data/tokenizers/unicode.h"
#include "support.h"

namespace lazy {
using namespace testing_support;

namespace {

// Runs `script` with `arguments` and returns its standard output.
std::string python(const Folder& folder, const std::string& script, const std::string& arguments) {
  const auto path = folder.write("script.py", script);
  const auto out = folder / "out";
  const std::string command = std::string(LAZY_TEST_PYTHON) + " " + path.string() + " " + arguments + " > " +
                              out.string() + " 2> " + (folder / "err").string();
  if (std::system(command.c_str()) != 0) ADD_FAILURE() << read_file(folder / "err");
  return read_file(out);
}

std::vector<std::string> texts(uint64_t seed, int count) {
  Random random(seed);
  std::vector<std::string> all = {"", " ", "  ", "\n", " \n", "\n ", "a", "<|endoftext|>", "x<|endoftext|> y"};
  for (int i = 0; i < count; ++i) all.push_back(random_text(random, 1 + random.below(40)));
  return all;
}

// Trains a small BPE of the given kind and prints the ids of each text.
constexpr const char* kTrainBpe = R"(
import json, sys
from tokenizers import Tokenizer, models, pre_tokenizers, normalizers, trainers, decoders, Regex, AddedToken
kind, texts_path, out_path = sys.argv[1:]
texts = json.load(open(texts_path))
t = Tokenizer(models.BPE(ignore_merges=(kind == "llama3")))
level = pre_tokenizers.ByteLevel(add_prefix_space=(kind == "prefix"), use_regex=kind in ("gpt2", "prefix", "digits"))
head = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
tail = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
if kind == "llama3":
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(head + "{1,3}" + tail), "isolated"), level])
elif kind == "qwen":
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(head + tail), "isolated"), level])
elif kind == "bloom":
    words = r" ?[^(\s|[.,!?…。，、।۔،])]+"
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(words), "isolated"), level])
elif kind == "digits":
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level])
else:
    t.pre_tokenizer = level
t.decoder = decoders.ByteLevel()
t.train_from_iterator(texts * 3, trainers.BpeTrainer(vocab_size=700, show_progress=False,
    special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
t.add_tokens([AddedToken("nexto", lstrip=True, normalized=True), AddedToken("ingr", rstrip=True, normalized=False)])
t.save(out_path)
print(json.dumps([t.encode(x, add_special_tokens=False).ids for x in texts]))
)";

class Parity : public testing::TestWithParam<const char*> {};

TEST_P(Parity, Encode_MatchesTokenizersPackage) {
  if (!python_has("tokenizers")) GTEST_SKIP() << LAZY_TEST_PYTHON << " has no package `tokenizers`";
  if (std::string(GetParam()) == "qwen" && !has_nfc()) GTEST_SKIP() << "built without libutf8proc, which NFC requires";
  const Folder folder;
  const auto all = texts(17, 400);
  folder.write("texts.json", nlohmann::json(all).dump());
  const auto expected = nlohmann::json::parse(python(
      folder, kTrainBpe,
      std::string(GetParam()) + " " + (folder / "texts.json").string() + " " + (folder / "tokenizer.json").string()));
  const auto tokenizer = load_tokenizer((folder / "tokenizer.json").string());
  ASSERT_EQ(expected.size(), all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(tokenizer->encode(all[i]), expected[i].get<std::vector<int32_t>>()) << GetParam() << ": " << all[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Parity, testing::Values("gpt2", "prefix", "llama3", "qwen", "digits", "bloom"),
                         [](const auto& info) { return std::string(info.param); });

// Trains a small BPE over characters with byte fallback, in the tokenizer.json forms of Llama 2 and Mistral.
constexpr const char* kTrainPieces = R"(
import json, sys
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
form, texts_path, out_path = sys.argv[1:]
texts = json.load(open(texts_path))
space = "\u2581"
t = Tokenizer(models.BPE(unk_token="<unk>"))
t.pre_tokenizer = pre_tokenizers.Metaspace(split=form != "across")
names = [f"<0x{b:02X}>" for b in range(256)]
plain = [x for x in texts if "<" not in x]
t.train_from_iterator(plain[::2] * 3, trainers.BpeTrainer(vocab_size=900, show_progress=False,
    special_tokens=["<unk>", "<s>", "<|endoftext|>"] + names, limit_alphabet=150))
j = json.loads(t.to_str())
j["added_tokens"] = [a for a in j["added_tokens"] if a["content"] not in names]
j["model"].update(byte_fallback=True, fuse_unk=True)
replace = {"type": "Replace", "pattern": {"String": " "}, "content": space}
metaspace = {"type": "Metaspace", "replacement": space, "prepend_scheme": form, "split": False}
if form in ("legacy", "across"):
    prepend = [{"type": "Prepend", "prepend": space}] if form == "legacy" else []
    j["normalizer"], j["pre_tokenizer"] = {"type": "Sequence", "normalizers": prepend + [replace]}, None
else:
    j["normalizer"], j["pre_tokenizer"] = None, metaspace
j["decoder"] = None
json.dump(j, open(out_path, "w"))
t = Tokenizer.from_file(out_path)
print(json.dumps([t.encode(x, add_special_tokens=False).ids for x in texts]))
)";

class PiecesParity : public testing::TestWithParam<const char*> {};

TEST_P(PiecesParity, Encode_MatchesTokenizersPackage) {
  if (!python_has("tokenizers")) GTEST_SKIP() << LAZY_TEST_PYTHON << " has no package `tokenizers`";
  const Folder folder;
  const auto all = texts(23, 400);
  folder.write("texts.json", nlohmann::json(all).dump());
  const auto expected = nlohmann::json::parse(python(
      folder, kTrainPieces,
      std::string(GetParam()) + " " + (folder / "texts.json").string() + " " + (folder / "tokenizer.json").string()));
  const auto tokenizer = load_tokenizer(folder.path().string());
  EXPECT_EQ(tokenizer->kind(), "sentencepiece");
  EXPECT_EQ(tokenizer->bos_id(), 1);
  tokenizer->save(folder / "saved");
  EXPECT_EQ(load_tokenizer((folder / "saved").string())->fingerprint(), tokenizer->fingerprint());
  ASSERT_EQ(expected.size(), all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const auto ids = tokenizer->encode(all[i]);
    EXPECT_EQ(ids, expected[i].get<std::vector<int32_t>>()) << GetParam() << ": " << all[i];
    if (all[i].find_first_of("<\xE2") != std::string::npos || all[i].starts_with(' '))
      continue;  // skip texts whose decoding is ambiguous
    EXPECT_EQ(tokenizer->decode(ids), all[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, PiecesParity, testing::Values("legacy", "first", "always", "never", "across"),
                         [](const auto& info) { return std::string(info.param); });

constexpr const char* kAutoTokenizer = R"(
import json, sys
from transformers import AutoTokenizer
t = AutoTokenizer.from_pretrained(sys.argv[1])
texts = json.load(open(sys.argv[2]))
ids = [t(x, add_special_tokens=False).input_ids for x in texts]
print(json.dumps({"ids": ids, "texts": [t.decode(i, clean_up_tokenization_spaces=False) for i in ids],
                  "bos": t.bos_token_id, "eos": t.eos_token_id, "with_bos": t("a").input_ids}))
)";

// Checks that AutoTokenizer loads the files of save() and returns the same ids.
void expect_same_in_transformers(const Folder& folder, const Tokenizer& tokenizer, bool adds_bos) {
  tokenizer.save(folder / "saved");
  auto all = texts(23, 200);
  std::erase_if(all, [](const std::string& text) {
    // SentencePiece treats "<s>" as text, but transformers treats it as a special token
    return text.find("<s>") != std::string::npos;
  });
  folder.write("texts.json", nlohmann::json(all).dump());
  const auto out = nlohmann::json::parse(
      python(folder, kAutoTokenizer, (folder / "saved").string() + " " + (folder / "texts.json").string()));
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(out["ids"][i].get<std::vector<int32_t>>(), tokenizer.encode(all[i])) << all[i];
    EXPECT_EQ(out["texts"][i].get<std::string>(), all[i]);
  }
  EXPECT_EQ(out["bos"].get<int32_t>(), tokenizer.bos_id());
  EXPECT_EQ(out["eos"].get<int32_t>(), tokenizer.eos_id());
  std::vector<int32_t> with_bos = tokenizer.encode("a");
  if (adds_bos) with_bos.insert(with_bos.begin(), *tokenizer.bos_id());
  EXPECT_EQ(out["with_bos"].get<std::vector<int32_t>>(), with_bos);
}

TEST(TransformersLoadsSlow, TrainedSentencePieceModel_MatchesTransformers) {
  if (!python_has("transformers, sentencepiece")) {
    GTEST_SKIP() << LAZY_TEST_PYTHON << " has no packages `transformers` and `sentencepiece`";
  }
  const Folder folder;
  expect_same_in_transformers(folder, *train_sentencepiece(texts(29, 300), 500), true);
}

TEST(TransformersLoadsData, Gpt2_MatchesTransformers) {
  if (!python_has("transformers")) GTEST_SKIP() << LAZY_TEST_PYTHON << " has no package `transformers`";
  const std::string gpt2 = test_data("tokenizers/gpt2");
  if (gpt2.empty()) GTEST_SKIP() << "LAZY_TEST_DATA does not name a folder with tokenizers/gpt2";
  const Folder folder;
  expect_same_in_transformers(folder, *load_tokenizer(gpt2), false);
}

constexpr const char* kSentencePiece = R"(
import json, sys
import sentencepiece
t = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])
print(json.dumps([t.encode(x) for x in json.load(open(sys.argv[2]))]))
)";

// Compares our fast encoder with the SentencePiece library, for the model of Llama 2 and a model that we trained.
TEST(SentencePieceParityData, Encode_MatchesPythonPackage) {
  if (!python_has("sentencepiece")) GTEST_SKIP() << LAZY_TEST_PYTHON << " has no package `sentencepiece`";
  const Folder folder;
  const auto all = texts(31, 500);
  folder.write("texts.json", nlohmann::json(all).dump());
  train_sentencepiece(texts(37, 300), 480)->save(folder.path());
  for (const std::string& model :
       {(folder / "tokenizer.model").string(), test_data("tokenizers/llama2-tokenizer.model")}) {
    if (model.empty()) continue;
    const auto tokenizer = load_tokenizer(model);
    const auto expected =
        nlohmann::json::parse(python(folder, kSentencePiece, model + " " + (folder / "texts.json").string()));
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(tokenizer->encode(all[i]), expected[i].get<std::vector<int32_t>>()) << model << ": " << all[i];
    }
  }
}

}  // namespace
}  // namespace lazy
