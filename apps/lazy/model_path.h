// Resolves the paths that commands accept for a model or a tokenizer.
#pragma once
#include <string>

namespace lazy::cli {

// Returns the model folder that `path` refers to. This is `path` itself if it contains config.json (a model folder or a
// checkpoint). For a run folder of `lazy train`, it is the finished model, or else the newest valid checkpoint. With
// `download`, `path` may also be the name of a model on the Hugging Face Hub: huggingface_hub downloads the model, and
// its folder in the cache is returned. Otherwise throws Error "OPERATION: ..." that says what was expected.
std::string resolve_model_folder(const char* operation, const std::string& path, bool download);

// Throws Error if the path is a GGUF file. The message has the command that converts the file.
void refuse_gguf(const char* operation, const std::string& path);

// Resolves a tokenizer (data/tokenizer.h): returns `source` itself, unless it is a name on the Hub and `download` is
// true.
std::string resolve_tokenizer(const char* operation, const std::string& source, bool download);

// Resolves a PyTorch checkpoint (a file or a folder). For a model on the Hugging Face Hub, downloads the files
// pytorch_model*.bin instead of the safetensors files.
std::string resolve_torch_checkpoint(const char* operation, const std::string& source, bool download);

}  // namespace lazy::cli
