// Perl's "plain old documentation" to readable prose.
#pragma once
#include <string>
#include <string_view>

namespace lazy {

// Drops markup and what is not prose: =commands (headings and item texts stay, as lines of their own), formatting
// codes (B<>, I<>, C<<  >>, L<>, E<>, ...), =begin/=for blocks of other formats, Perl code outside POD.
// `keep_code`: keep verbatim (indented) paragraphs. Paragraphs are unwrapped: one line each, parted by a blank line.
std::string pod_to_text(std::string_view pod, bool keep_code);

}  // namespace lazy
