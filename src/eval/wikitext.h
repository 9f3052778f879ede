// WikiText as lm-evaluation-harness reads it: pages out of the raw file, and its detokenizer.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace lazy::eval {

// A page starts at a line " = Title = " with one equals sign on each side (the rule of the document-level set
// EleutherAI/wikitext_document_level). Lines are joined again as they were; pages of white space alone are dropped.
std::vector<std::string> wikitext_pages(std::string_view raw);

// The fixed replacement list of tasks/wikitext/preprocess_wikitext.py, in its order, its inert rule included.
std::string wikitext_detokenize(std::string text);

}  // namespace lazy::eval
