// Fuzzes the reader of corpus text: JSON lines, plain text or POD (the documentation format of Perl), compressed or
// not. The first two bytes of the input select the options of the reader.
#include <algorithm>

#include "core/text.h"
#include "data/corpus/documents.h"
#include "target.h"

using namespace lazy;

LAZY_FUZZ_TARGET(corpus_text) {
  if (input.size() < 2) return;
  const auto how = static_cast<unsigned char>(input[0]), more = static_cast<unsigned char>(input[1]);
  DocumentOptions options;
  options.split_blank = how >> 2 & 3;
  options.pod_code = how & 16;
  options.max_bytes = more % 64;
  const TextFormat formats[] = {TextFormat::json_lines, TextFormat::plain, TextFormat::pod, TextFormat::json_lines};
  const auto path = fuzz::put("input", input.substr(2));
  DocumentReader reader(find_sources({path.string()}, formats[how & 3]), options);
  RawBatch batch;
  uint64_t seen = 0;
  // at most 64 MiB: a compressed input of a few bytes may contain far more text
  while (seen < 64 << 20 && reader.next(batch)) {
    seen += batch.text.size();
    const bool text = batch.source->format != TextFormat::pod;
    const DocumentBatch found = extract_documents(std::move(batch), options);
    batch = {};
    for (const std::string& document : found.documents) {
      fuzz::require(!document.empty(), "no document is empty");
      fuzz::require(to_valid_utf8(document) == document, "documents are valid UTF-8");
      fuzz::require(!text || options.max_bytes == 0 ||
                        document.size() <= static_cast<size_t>(std::max<int64_t>(options.max_bytes, 4)),
                    "documents are not longer than the limit");
    }
  }
}
