// SentencePiece models through SentencePiece's own library: Llama 2's tokenizer.model and those that we train.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer.h"

namespace lazy {

// `serialized` is the content of a .model file; `name` names it in errors.
std::unique_ptr<Tokenizer> load_sentencepiece(std::string serialized, const std::string& name);

}  // namespace lazy
