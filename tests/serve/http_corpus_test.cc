// Requests derived from RFC 9110 and RFC 9112, with the statuses of the expected responses. Each connection ends after
// its input, so the responses can be counted. If the server read the body of a request as another request, there would
// be one response too many.
#include <gmock/gmock.h>

#include <regex>

#include "client.h"

namespace lazy::serve {
namespace http_corpus {
namespace {

using testing_support::Client;
using testing_support::TestServer;

struct Conversation {
  std::string bytes;
  std::string statuses;  // regular expression for the statuses of all responses on the connection, such as "200 404"
};

// A request that follows another request on the same connection. Some tests also send it as a body, to detect request
// smuggling (a body that is read as a request).
const std::string kNext = "GET /version HTTP/1.1\r\nHost: x\r\n\r\n";
const std::string kJson = R"({"prompt":"x"})";

std::string get(const std::string& target, const std::string& fields = "Host: x\r\n") {
  return "GET " + target + " HTTP/1.1\r\n" + fields + "\r\n";
}
std::string post(const std::string& fields, const std::string& body) {
  return "POST /tokenize HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n" + body;
}
std::string sized(const std::string& body) { return "Content-Length: " + std::to_string(body.size()) + "\r\n"; }
std::string hexadecimal(size_t number) { return fmt::format("{:x}", number); }
std::string chunked_json() { return hexadecimal(kJson.size()) + "\r\n" + kJson + "\r\n0\r\n\r\n"; }

// Requests that test the framing of messages (RFC 9112 6.1 and 6.3).
std::vector<Conversation> framing() {
  std::vector<Conversation> out;
  const std::vector<std::string> chunked = {"chunked",    "Chunked",  "CHUNKED",   "\tchunked",
                                            "chunked \t", "chunked,", ", chunked", ",,chunked,,"};
  for (const std::string& value : chunked) {
    out.push_back({post("Transfer-Encoding: " + value + "\r\n", chunked_json()) + kNext, "200 200"});
    out.push_back({post("transfer-encoding:" + value + "\r\n", chunked_json()) + kNext, "200 200"});
    out.push_back({post("Transfer-Encoding: " + value + "\r\n" + sized(kNext), chunked_json() + kNext), "400"});
    out.push_back({post(sized(kNext) + "Transfer-Encoding: " + value + "\r\n", chunked_json() + kNext), "400"});
    out.push_back(
        {"POST /tokenize HTTP/1.0\r\nTransfer-Encoding: " + value + "\r\n\r\n" + chunked_json() + kNext, "400"});
  }
  const std::vector<std::string> refused = {"",
                                            "gzip",
                                            "identity",
                                            "deflate",
                                            "br",
                                            "xchunked",
                                            "chunkedx",
                                            "chunke",
                                            "\"chunked\"",
                                            "chunked;q=1",
                                            "chunked; a=b",
                                            "chun ked",
                                            "chunked, chunked",
                                            "chunked, identity",
                                            "chunked, gzip",
                                            "gzip, identity",
                                            "identity, chunked",
                                            "chunked, ,gzip",
                                            "null",
                                            "chunked\xa0",
                                            "cow, chunked",
                                            "chunked chunked",
                                            "x-gzip",
                                            "gzip;chunked",
                                            "0",
                                            "true",
                                            "trailers",
                                            "trailers, deflate"};
  for (const std::string& value : refused) {
    const std::string field = "Transfer-Encoding: " + value + "\r\n";
    for (const std::string& body : {kNext, chunked_json() + kNext, "0\r\n\r\n" + kNext})
      out.push_back({post(field, body), "400"});
    out.push_back({post(field + sized(kNext), kNext), "400"});
    out.push_back({get("/version", "Host: x\r\n" + field) + kNext, "400"});
  }
  for (const std::string value : {"gzip, chunked", "deflate, chunked", "x-gzip,chunked", "compress, gzip, chunked"}) {
    out.push_back({post("Transfer-Encoding: " + value + "\r\n", chunked_json() + kNext), "501"});
  }
  out.push_back({post("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", chunked_json() + kNext), "501"});
  out.push_back({post("Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n", chunked_json() + kNext), "400"});
  out.push_back({post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", chunked_json() + kNext), "400"});
  out.push_back({post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", chunked_json() + kNext), "400"});
  const std::vector<std::string> names = {"Transfer-Encoding ", "Transfer Encoding", "Transfer-Encoding\t",
                                          " Transfer-Encoding", "Content-Length ",   "Content-Length\t",
                                          " Content-Length"};
  for (const std::string& name : names)
    out.push_back(
        {post("A: b\r\n" + name + ": " + (name.find("Len") == std::string::npos ? "chunked" : "36") + "\r\n", kNext),
         name[0] == ' ' ? "400( 200)?|4.. 200|400 400" : "400"});

  const std::vector<std::string> lengths = {"-1",
                                            "+14",
                                            "0x0e",
                                            "14 14",
                                            "14,14",
                                            "14, 15",
                                            "14;",
                                            "abc",
                                            "",
                                            "1e1",
                                            "14.0",
                                            "\"14\"",
                                            "1 4",
                                            "１４",
                                            "14\x0b",
                                            "--14",
                                            "14a",
                                            "inf",
                                            "99999999999999999999999999",
                                            "18446744073709551616"};
  for (const std::string& length : lengths) {
    out.push_back({post("Content-Length: " + length + "\r\n", kJson + kNext), "400|413"});
    out.push_back({get("/version", "Host: x\r\nContent-Length: " + length + "\r\n") + kNext, "400|413"});
  }
  for (const std::string second : {"14", "15", "0", "014", "x", "", "-1"}) {
    out.push_back({post("Content-Length: 14\r\nContent-Length: " + second + "\r\n", kJson + kNext), "400"});
    out.push_back({post("Content-Length: " + second + "\r\nA: b\r\nContent-Length: 14\r\n", kJson + kNext), "400"});
  }
  out.push_back({post("Content-Length: 014\r\n", kJson) + kNext, "200 200"});
  out.push_back({post("Content-Length:14\r\n", kJson) + kNext, "200 200"});
  out.push_back({post("Content-Length: \t14\t \r\n", kJson) + kNext, "200 200"});
  out.push_back({post(sized(kJson), kJson) + kNext, "200 200"});
  // The body is not JSON, and must not be read as a request.
  out.push_back({post(sized(kNext), kNext) + kNext, "400 200"});
  out.push_back({post("Content-Length: 100\r\n", kJson), ""});  // the body is incomplete
  out.push_back({post("", "") + kNext, "400 200"});             // the request has no body
  out.push_back({get("/version", "Host: x\r\n" + sized(kNext)) + kNext + kNext, "200 200"});
  out.push_back({get("/version", "Host: x\r\nTransfer-Encoding: chunked\r\n") + chunked_json() + kNext, "200 200"});
  return out;
}

// Requests with chunked bodies (RFC 9112 7).
std::vector<Conversation> chunks() {
  std::vector<Conversation> out;
  const auto with = [](const std::string& body) { return post("Transfer-Encoding: chunked\r\n", body); };
  const std::string rest = "\r\n" + kJson + "\r\n0\r\n\r\n";
  for (const std::string size :
       {"e", "E", "0e", "0000000e", "e;a", "e;a=b", "e;a=\"b c\"", "e;a=b;c=d", "e;a=\"\\\"\""})
    out.push_back({with(size + rest) + kNext, "200 200"});
  for (const std::string size : {"-e", "+e", "0xe", "e x", "", "g", "e g", ";a=b", "\"e\"", "e\n", "\ne", "e\r",
                                 "fffffffffffffffff", "10000000000000000e", "ffffffffffffffff", "7fffffffffffffff"})
    out.push_back({with(size + rest) + kNext, "400|413"});
  out.push_back({with("e\r\n" + kJson + "X\r\n0\r\n\r\n") + kNext, "400"});
  out.push_back({with("e\r\n" + kJson + "\n0\r\n\r\n") + kNext, "400"});
  out.push_back({with("e\r\n" + kJson + "0\r\n\r\n") + kNext, "400"});
  out.push_back({with("e\n" + kJson + "\n0\n\n") + kNext, "400"});
  out.push_back({with("d\r\n" + kJson + "\r\n0\r\n\r\n") + kNext, "400"});
  out.push_back({with("f\r\n" + kJson + "\r\n0\r\n\r\n") + kNext, "400"});
  out.push_back({with("e\r\n" + kJson), ""});
  out.push_back({with("e\r\n" + kJson + "\r\n0\r\n"), ""});
  out.push_back({with("0\r\n\r\n") + kNext, "400 200"});
  std::string bytes;
  for (const char c : kJson) bytes += std::string("1\r\n") + c + "\r\n";
  out.push_back({with(bytes + "0\r\n\r\n") + kNext, "200 200"});
  out.push_back({with("00000\r\n\r\n") + kNext, "400 200"});
  // Trailer fields must not affect framing, routing or authorization (RFC 9110 6.5.1).
  const std::vector<std::string> trailers = {"X: y",
                                             "Host: other",
                                             "Authorization: Bearer x",
                                             "Content-Length: 5",
                                             "Transfer-Encoding: chunked",
                                             "Transfer-Encoding: gzip",
                                             "Expect: 100-continue",
                                             "Content-Encoding: gzip",
                                             "Connection: keep-alive"};
  for (const std::string& trailer : trailers)
    out.push_back({with("e\r\n" + kJson + "\r\n0\r\n" + trailer + "\r\n\r\n") + kNext, "200 200|400"});
  for (const std::string trailer : {"X : y", "X", ": y", "X: y\n", "\x01: y"})
    out.push_back({with("e\r\n" + kJson + "\r\n0\r\n" + trailer + "\r\n\r\n") + kNext, "400"});
  return out;
}

// Requests that test Host and the request target (RFC 9112 3.2 and RFC 9110 7.2).
std::vector<Conversation> targets() {
  std::vector<Conversation> out;
  for (const std::string host :
       {"x", "x:80", "127.0.0.1", "127.0.0.1:8080", "[::1]", "[::1]:8080", "", "a.b-c_d~e", "EXAMPLE.org", "x:", "%41"})
    out.push_back({get("/version", "Host: " + host + "\r\n") + kNext, "200 200"});
  for (const std::string host :
       {"a b", "a/b", "a@b", "http://x", "x\t80", "a\\b", "<x>", "x?y", "x#y", "a|b", "\xc3\xa4"}) {
    out.push_back({get("/version", "Host: " + host + "\r\n") + kNext, "400"});
    out.push_back({"GET /version HTTP/1.0\r\nHost: " + host + "\r\n\r\n", "400"});
  }
  for (const std::string fields : {"", "A: b\r\n", "X-Host: x\r\n"})
    out.push_back({get("/version", fields) + kNext, "400"});
  for (const std::string second : {"x", "y", "X", ""}) {
    out.push_back({get("/version", "Host: x\r\nHost: " + second + "\r\n") + kNext, "400"});
    out.push_back({get("/version", "Host: " + second + "\r\nA: b\r\nhost: x\r\n") + kNext, "400"});
    out.push_back({"GET /version HTTP/1.0\r\nHost: x\r\nHost: " + second + "\r\n\r\n", "400"});
  }
  out.push_back({"GET /version HTTP/1.0\r\n\r\n", "200"});
  for (const std::string target : {"http://x/version", "http://x:80/version", "HTTP://x/version", "https://x/version",
                                   "http://other/version", "http://[::1]/version", "http://x/version?a=b", "/version?",
                                   "/version?a", "/version?a=b&c", "/%76ersion", "/vers%69on", "/%56ersion"}) {
    const std::string status = target == "/%56ersion" ? "404" : "200";  // %56 is V, and paths are case-sensitive
    out.push_back({get(target) + kNext, status + " 200"});
  }
  out.push_back({get("http://x") + kNext, "200 200"});  // an empty path is treated as `/`, the path of the web page
  out.push_back({get("http://x?a=b") + kNext, "200 200"});
  for (const std::string target :
       {"version", "*", "x:80", "http:///version", "http://a b/version", "http://a@b/version", "/ver#sion", "/version#",
        "/%", "/%7", "/%zz", "/%00", "/version%", "/\xc3\xa4", "?a=b", "ftp://x/version", "http:/version", "//",
        "/a b"}) {
    out.push_back({get(target) + kNext, target == "//" ? "404 200" : "400"});
  }
  for (const std::string target : {"/versions", "/version/", "/Version", "/v1", "/v1/", "/%2Fversion", "/version%2F",
                                   "/version;a=b", "/./version", "/v1/../version", "//version", "/tokenize%20"})
    out.push_back({get(target) + kNext, "404 200"});
  for (const std::string query : {"model=tiny", "x=y&model=tiny", "model=tiny&x=y", "model=t%69ny", "m%6fdel=tiny",
                                  "&&model=tiny&", "model=other&model=tiny", "x", "x=y", "=", "", "x=%zz"})
    out.push_back({get("/tokenizer_info?" + query) + kNext, "200 200"});
  for (const std::string query :
       {"model=other", "x=y&model=other", "model=tiny&model=other", "model=t+ny", "model=tin%79x"})
    out.push_back({get("/tokenizer_info?" + query) + kNext, "404 200"});
  out.push_back({get("/v1/models/tiny") + kNext, "200 200"});
  out.push_back({get("/v1/models/t%69ny") + kNext, "200 200"});
  out.push_back({get("/v1/models/other%2Fname") + kNext, "404 200"});
  out.push_back({get("/" + std::string(20000, 'x')) + kNext, "414"});
  out.push_back({get("/version", "Host: x\r\nA: " + std::string(20000, 'x') + "\r\n") + kNext, "431"});
  return out;
}

// Requests with various methods (RFC 9110 9 and 15).
std::vector<Conversation> methods() {
  std::vector<Conversation> out;
  const auto request = [](const std::string& method, const std::string& path) {
    return method + " " + path + " HTTP/1.1\r\nHost: x\r\n\r\n";
  };
  for (const std::string path :
       {"/version", "/v1/models", "/v1/models/tiny", "/health", "/metrics", "/tokenizer_info", "/"}) {
    for (const std::string method : {"GET", "HEAD"}) out.push_back({request(method, path) + kNext, "200 200"});
    out.push_back({request("OPTIONS", path) + kNext, "204 200"});
    for (const std::string method : {"POST", "PUT", "DELETE", "PATCH", "TRACE"})
      out.push_back({request(method, path) + kNext, "405 200"});
    for (const std::string method : {"get", "Get", "FOO", "GETX", "PRI", "BREW"})
      out.push_back({request(method, path) + kNext, "501 200"});
  }
  for (const std::string path :
       {"/tokenize", "/detokenize", "/v1/completions", "/v1/chat/completions", "/v1/attention"}) {
    for (const std::string method : {"GET", "HEAD", "PUT", "DELETE", "PATCH", "TRACE"})
      out.push_back({request(method, path) + kNext, "405 200"});
    out.push_back({request("OPTIONS", path) + kNext, "204 200"});
    out.push_back({request("POST", path) + kNext, "400 200"});
  }
  for (const std::string method : {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"})
    out.push_back({request(method, "/nothing") + kNext, "404 200"});
  out.push_back({request("OPTIONS", "*") + kNext, "204 200"});
  out.push_back({request("CONNECT", "x:80") + kNext, "400"});
  for (const std::string method : {"", " ", "G ET", "G\tET", "GET\x01", "G(ET", "\"GET\"", "G:ET", "{}", "<html>"})
    out.push_back({request(method, "/version") + kNext, "400"});
  return out;
}

// Requests that test line endings, versions and header fields (RFC 9112 2.2, 2.3, 3 and 5).
std::vector<Conversation> lines() {
  std::vector<Conversation> out;
  for (const std::string empty : {"\r\n", "\r\n\r\n", "\r\n\r\n\r\n"}) {
    out.push_back({empty + kNext + empty + kNext, "200 200"});
    out.push_back({empty + post(sized(kJson), kJson) + empty + kNext, "200 200"});
  }
  for (const std::string& begin : std::vector<std::string>{" ", "\r", "\t", "\r\r\n", "x\r\n", std::string(1, 0)})
    out.push_back({begin + kNext, "400"});
  const auto versioned = [](const std::string& version) { return "GET /version " + version + "\r\nHost: x\r\n\r\n"; };
  out.push_back({versioned("HTTP/1.1") + kNext, "200 200"});
  out.push_back({versioned("HTTP/1.0"), "200"});
  for (const std::string version : {"HTTP/2.0", "HTTP/0.9", "HTTP/3.0"})
    out.push_back({versioned(version) + kNext, "505|400"});
  for (const std::string version : {"http/1.1", "HTTP/1", "HTTP/1.", "HTTP/1.1x", "HTTP 1.1", "HTTP/11", "HTTP/01.1",
                                    "HTTP/1.01", "HTTP/-1.1", "HTTPS/1.1", "XTTP/1.1", "", " HTTP/1.1", "HTTP/1.1 x"})
    out.push_back({versioned(version) + kNext, "400|505"});
  out.push_back({"GET  /version HTTP/1.1\r\nHost: x\r\n\r\n" + kNext, "400"});
  out.push_back({"GET\t/version\tHTTP/1.1\r\nHost: x\r\n\r\n" + kNext, "400"});
  out.push_back({"GET /version\r\n\r\n" + kNext, "400|505"});
  out.push_back({"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400|505"});
  const std::vector<std::string> fields = {"A",        "A b",      ": b",        "A : b",    "A\t: b",  "(A): b",
                                           "A\x01: b", "\"A\": b", "A{}: b",     "A@: b",    "A/: b",   "=: b",
                                           "A[: b",    "A: b\rc",  "A: b\nc: d", "A: b\x01", "A: b\x7f"};
  for (const std::string& field : fields) {
    out.push_back({get("/version", "Host: x\r\n" + field + "\r\n") + kNext, "400"});
    out.push_back({post(field + "\r\n" + sized(kJson), kJson) + kNext, "400"});
  }
  out.push_back({get("/version", "Host: x\r\n" + std::string("A: b") + '\0' + "c\r\n") + kNext, "400"});
  for (const std::string field : {"A:", "A: ", "A:b", "A:\tb\t", "A: b c", "A: \xc3\xa4", "A: \x80",
                                  "A!#$%&'*+-.^_`|~1: b", "A: b:c", "A: \"b\""})
    out.push_back({get("/version", "Host: x\r\n" + field + "\r\n") + kNext, "200 200"});
  // A folded field is either refused or read as one field (RFC 9112 5.2).
  out.push_back({get("/version", "Host: x\r\nA: b\r\n c\r\n") + kNext, "400|200 200"});
  out.push_back({post("A: b\r\n Transfer-Encoding: gzip\r\n" + sized(kJson), kJson) + kNext, "400|200 200"});
  out.push_back({post("A: b\r\n\tContent-Length: 0\r\n" + sized(kJson), kJson) + kNext, "400|200 200"});
  out.push_back({get("/version", "Host: x\n") + kNext, "400"});
  // without CR, the first line never ends, so the server may wait for more data
  out.push_back({"GET /version HTTP/1.1\nHost: x\n\n", "(400)?"});
  out.push_back({"GET /version HTTP/1.1\r\n Host: x\r\n\r\n" + kNext, "400"});
  return out;
}

// Requests that test Expect, Content-Encoding and Connection (RFC 9110 10.1.1 and 8.4, RFC 9112 9.3).
std::vector<Conversation> expectations() {
  std::vector<Conversation> out;
  for (const std::string value : {"100-continue", "100-Continue", "100-CONTINUE", " 100-continue\t", "100-continue,",
                                  "100-continue, 100-continue"}) {
    out.push_back({post("Expect: " + value + "\r\n" + sized(kJson), kJson) + kNext, "(100 )?200 200"});
    out.push_back(
        {post("Expect: " + value + "\r\nTransfer-Encoding: chunked\r\n", chunked_json()) + kNext, "(100 )?200 200"});
    out.push_back({get("/version", "Host: x\r\nExpect: " + value + "\r\n") + kNext, "200 200"});
    out.push_back({"POST /tokenize HTTP/1.0\r\nExpect: " + value + "\r\n" + sized(kJson) + "\r\n" + kJson, "200"});
  }
  for (const std::string value :
       {"200-ok", "100-continue, x", "100", "continue", "100 -continue", "100-continue;a=b"}) {
    out.push_back({post("Expect: " + value + "\r\n" + sized(kJson), kJson) + kNext, "417"});
    out.push_back({"POST /tokenize HTTP/1.0\r\nExpect: " + value + "\r\n" + sized(kJson) + "\r\n" + kJson, "200"});
  }
  for (const std::string value : {"identity", "Identity", "", "identity, identity"})
    out.push_back({post("Content-Encoding: " + value + "\r\n" + sized(kJson), kJson) + kNext, "200 200"});
  for (const std::string value : {"gzip", "GZIP", "br", "deflate", "zstd", "identity, gzip", "x"})
    out.push_back({post("Content-Encoding: " + value + "\r\n" + sized(kJson), kJson) + kNext, "415"});
  for (const std::string value : {"close", "Close", "keep-alive, close", "close, x", "x,close"}) {
    out.push_back({get("/version", "Host: x\r\nConnection: " + value + "\r\n") + kNext, "200"});
    out.push_back({post("Connection: " + value + "\r\n" + sized(kJson), kJson) + kNext, "200"});
  }
  for (const std::string value : {"keep-alive", "Keep-Alive", "", "x", "upgrade", "TE"}) {
    out.push_back({get("/version", "Host: x\r\nConnection: " + value + "\r\n") + kNext, "200 200"});
    out.push_back({post("Connection: " + value + "\r\n" + sized(kJson), kJson) + kNext, "200 200"});
  }
  out.push_back({"GET /version HTTP/1.0\r\n\r\n" + kNext, "200"});
  out.push_back({"GET /version HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + kNext, "200 200"});
  out.push_back({get("/version", "Host: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n") + kNext, "200 200"});
  out.push_back(
      {get("/version", "Host: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n") + kNext, "200 200"});
  return out;
}

// Returns the statuses of all responses on a connection. Responses to HEAD and responses with status 204 have no body.
std::string statuses_of(const std::string& received, bool head) {
  std::string out, rest = received;
  while (rest.starts_with("HTTP/1.1 ")) {
    const std::string status = rest.substr(9, 3);
    out += (out.empty() ? "" : " ") + status;
    const size_t end = rest.find("\r\n\r\n"), length = rest.find("Content-Length: ");
    size_t body = 0;
    if (length < end && !head) body = std::stoul(rest.substr(length + 16));
    head = false;
    rest = rest.substr(std::min(rest.size(), end + 4 + body));
  }
  return rest.empty() ? out : out + " and more: " + rest;
}

void check(const std::vector<Conversation>& corpus) {
  TestServer server;
  for (const Conversation& exchange : corpus) {
    for (const bool byte_by_byte : {false, true}) {  // the result must be the same if bytes arrive separately
      if (byte_by_byte && exchange.bytes.size() > 400) continue;
      Client client = server.client();
      if (byte_by_byte) {
        for (const char byte : exchange.bytes) client.send({&byte, 1});
      } else {
        client.send(exchange.bytes);
      }
      client.end_of_input();
      ASSERT_TRUE(client.ended()) << exchange.bytes;
      const std::string statuses = statuses_of(client.received(), exchange.bytes.starts_with("HEAD "));
      EXPECT_TRUE(std::regex_match(statuses, std::regex(exchange.statuses)))
          << "expected " << exchange.statuses << ", found " << statuses << (byte_by_byte ? ", byte by byte" : "")
          << "\n"
          << testing::PrintToString(exchange.bytes);
    }
  }
}

TEST(HttpCorpus, Framing) { check(framing()); }
TEST(HttpCorpus, Chunks) { check(chunks()); }
TEST(HttpCorpus, HostAndTarget) { check(targets()); }
TEST(HttpCorpus, Methods) { check(methods()); }
TEST(HttpCorpus, Lines) { check(lines()); }
TEST(HttpCorpus, ExpectationsAndConnections) { check(expectations()); }

TEST(HttpCorpus, Corpus_HasFiveHundredRequests) {
  size_t requests = 0;
  for (const auto& part : {framing(), chunks(), targets(), methods(), lines(), expectations()}) requests += part.size();
  EXPECT_GE(requests, 500u);
}

}  // namespace
}  // namespace http_corpus
}  // namespace lazy::serve
