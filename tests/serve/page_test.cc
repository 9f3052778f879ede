// Tests of the HTML of the web page at `/`. tests/serve/test_page.py tests its behavior in a browser.
#include <gmock/gmock.h>

#include "client.h"

namespace lazy::serve {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::Client;
using testing_support::Reply;
using testing_support::TestServer;

TEST(Page, Page_NeedsNoKeyAndNoOtherServer) {
  TestServer server({}, {}, ApiKeys({"key"}));
  const Reply page = server.client().get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.headers.at("Content-Type"), "text/html; charset=utf-8");
  EXPECT_EQ(page.headers.at("Cache-Control"), "no-cache");
  EXPECT_EQ(page.headers.at("X-Content-Type-Options"), "nosniff");
  const std::string policy = page.headers.at("Content-Security-Policy");
  EXPECT_THAT(policy, HasSubstr("default-src 'none'; script-src 'sha256-"));
  EXPECT_THAT(policy, HasSubstr("connect-src 'self'"));
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  EXPECT_THAT(page.body, HasSubstr("<!doctype html>"));
  EXPECT_THAT(page.body, HasSubstr("</html>"));
  EXPECT_THAT(page.body, Not(HasSubstr("@PAGE")));
  EXPECT_THAT(page.body, Not(HasSubstr("https://")));
  // The page has one script element and one style element. The content security policy must contain the hash of each
  // element.
  for (const char* open : {"<script>", "<style>"}) {
    EXPECT_EQ(page.body.find(open), page.body.rfind(open)) << open;
  }
  EXPECT_EQ(server.client().get("/v1/models").status, 401);
}

TEST(Page, Page_SupportsOnlyGetAndHead) {
  TestServer server;
  Client client = server.client();
  client.send("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n");
  const Reply head = client.read_reply(10, true);
  EXPECT_EQ(head.status, 200);
  EXPECT_GT(std::stoul(head.headers.at("Content-Length")), 1000U);
  EXPECT_TRUE(head.headers.contains("Content-Security-Policy"));
  const Reply post = server.client().post("/", std::string("{}"));
  EXPECT_EQ(post.status, 405);
  EXPECT_EQ(post.headers.at("Allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(server.client().get("/index.html").status, 404);
}

}  // namespace
}  // namespace lazy::serve
