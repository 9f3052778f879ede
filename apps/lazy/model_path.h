// Paths that commands accept where they read a model or a tokenizer.
#pragma once
#include <string>

namespace lazy::cli {

// The model folder that `path` names: `path` itself if it contains config.json (a model folder or a checkpoint); for
// the run folder of `lazy train`, its finished model, or else its newest valid checkpoint. With `download`, the name of
// a model on the Hugging Face Hub is downloaded by huggingface_hub, and its folder in the cache is returned.
// Error "OPERATION: ..." that says what was expected if it is none of these.
std::string resolve_model_folder(const char* operation, const std::string& path, bool download);

// Error with the command that converts it if the path is a GGUF file.
void refuse_gguf(const char* operation, const std::string& path);

// The same for a tokenizer (data/tokenizer.h): `source` itself, unless it is a name on the Hub and `download` is true.
std::string resolve_tokenizer(const char* operation, const std::string& source, bool download);

// The same for a PyTorch checkpoint, a file or a folder: of a model on the Hub, pytorch_model*.bin is downloaded
// instead of safetensors files.
std::string resolve_torch_checkpoint(const char* operation, const std::string& source, bool download);

}  // namespace lazy::cli
