// A file of torch.save.
#include "model/torch_file/format.h"

#include "model/safetensors_format.h"
#include "target.h"

using namespace lazy;

LAZY_FUZZ_TARGET(torch_file) {
  // Accepted means: every element of every tensor lies in the file.
  for (const TorchFileEntry& entry : parse_torch_file(input, "pytorch_model.bin")) {
    const auto bytes = static_cast<unsigned __int128>(safetensors_dtype_bits(entry.dtype)) / 8;
    fuzz::require(bytes > 0 && entry.shape.size() == entry.strides.size(), "a type, and a stride for each size");
    unsigned __int128 last = 0;
    for (size_t i = 0; i < entry.shape.size(); ++i) {
      fuzz::require(entry.shape[i] >= 0 && entry.strides[i] >= 0, "sizes and strides of at least 0");
      if (entry.elements > 0)
        last += static_cast<unsigned __int128>(entry.shape[i] - 1) * static_cast<uint64_t>(entry.strides[i]);
    }
    fuzz::require(entry.elements == 0 || last < entry.elements, "elements are counted to the last one");
    fuzz::require(entry.begin + entry.elements * bytes <= input.size(), "tensors lie in the file");
  }
}
