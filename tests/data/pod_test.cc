#include "data/corpus/documents.h"

#include <gtest/gtest.h>

namespace lazy {

TEST(Pod, PodToText_KeepsProseAndDropsMarkup) {
  EXPECT_EQ(
      pod_to_text("code before\n\n=head1 NAME\n\nThis is B<bold> and\nI<C<nested>> text.\n\n    verbatim();\n\n"
                  "=over 4\n\n=item *\n\nFirst.\n\n=item * Second\n\n=item 3. Third\n\n=back\n\n=cut\n\nmore code\n",
                  false),
      "NAME\n\nThis is bold and nested text.\n\nFirst.\n\nSecond\n\nThird\n");
}

TEST(Pod, FormattingCodes_BecomeText) {
  const auto text = [](const std::string& pod) { return pod_to_text("=pod\n\n" + pod + "\n", false); };
  EXPECT_EQ(text("E<lt>E<gt>E<eacute>E<0x4E2D>E<233>E<sol>Z<>"), "<>é中é/\n");
  EXPECT_EQ(text("C<< a->b >> and C<<< x >> y >>> end"), "a->b and x >> y end\n");
  EXPECT_EQ(text("C<<STDIN>> reads"), "<STDIN> reads\n");
  EXPECT_EQ(text("L<perlre>, L<the manual|perlop>, L<perlfunc/open>, L</\"Here\">, L<http://x.org/>"),
            "perlre, the manual, \"open\" in perlfunc, \"Here\", http://x.org/\n");
  EXPECT_EQ(text("X<index>Shown S<no break>"), "Shown no break\n");
  EXPECT_EQ(text("a < b > c, A->B"), "a < b > c, A->B\n");
  EXPECT_EQ(text("B<never closed"), "never closed\n");
}

TEST(Pod, OtherFormats_AreSkipped) {
  EXPECT_EQ(pod_to_text("=head2 A\n\n=begin html\n\n<p>no</p>\n\n=head1 no\n\n=end html\n\n=for man no\n\n"
                        "=encoding utf8\n\n=begin :list\n\nyes\n\n=end :list\n",
                        false),
            "A\n\nyes\n");
}

TEST(Pod, KeepCode_KeepsVerbatimParagraphs) {
  EXPECT_EQ(pod_to_text("=pod\n\nSay:\n\n    my $x = 1;\n    print $x;\n", true),
            "Say:\n\n    my $x = 1;\n    print $x;\n");
}

TEST(Pod, MalformedPod_DoesNotThrow) {
  for (const char* pod :
       {"", "=", "=\n\n", "=pod", "=item", "=pod\n\nL<", "=pod\n\nE<0xD800>E<99999999>E<>", "=end\n\n=cut"}) {
    EXPECT_NO_THROW(pod_to_text(pod, true)) << pod;
  }
  EXPECT_NO_THROW(pod_to_text("=pod\n\n" + std::string(100000, 'B') + "B<<" + std::string(1000, '<'), false));
  std::string deep = "=pod\n\n";
  for (int i = 0; i < 100000; ++i) deep += "B<";
  EXPECT_NO_THROW(pod_to_text(deep, false));
}

}  // namespace lazy
