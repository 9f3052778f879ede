#include "serve/http/request_head.h"

#include <algorithm>
#include <vector>

namespace lazy::serve {
namespace http = boost::beast::http;

namespace {

constexpr HttpProblem kBadFraming{400, "expected either Transfer-Encoding: chunked or one Content-Length",
                                  "bad_framing"};

// Compares two strings without regard to the case of ASCII letters.
bool iequals(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::ranges::equal(a, b, {}, lower, lower);
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// Returns the members of a header field whose value is a comma-separated list. The field may occur on several lines.
// Empty members are omitted (RFC 9110 5.6.1).
std::vector<std::string_view> members(const HttpHead& head, http::field field) {
  std::vector<std::string_view> out;
  const auto [begin, end] = head.equal_range(field);
  for (auto line = begin; line != end; ++line) {
    std::string_view rest(line->value().data(), line->value().size());
    while (true) {
      const size_t comma = rest.find(',');
      if (const std::string_view member = trimmed(rest.substr(0, comma)); !member.empty()) out.push_back(member);
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
  }
  return out;
}

bool is_alphanumeric(char c) { return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z'); }
bool is_unreserved(char c) { return is_alphanumeric(c) || c == '-' || c == '.' || c == '_' || c == '~'; }

// Whether the text has only the characters that RFC 3986 allows in host [":" port].
bool is_authority(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return is_unreserved(c) || std::string_view("!$&'()*+,;=%:[]").find(c) != std::string_view::npos;
  });
}

int hex_digit(std::string_view text, size_t at) {
  const char c = at < text.size() ? text[at] : ' ';
  return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

// Returns the byte that is encoded as "%XX" at `at`, or -1 if the encoding is invalid.
int encoded_byte(std::string_view text, size_t at) {
  const int high = hex_digit(text, at + 1), low = hex_digit(text, at + 2);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::optional<HttpProblem> check_framing(const HttpHead& head, bool chunked) {
  const bool encoded = head.count(http::field::transfer_encoding) > 0;
  const size_t lengths = head.count(http::field::content_length);
  const std::vector<std::string_view> codings = members(head, http::field::transfer_encoding);
  const auto length = head[http::field::content_length];
  const bool is_list = length.find(',') != length.npos;
  if (lengths > 1 || is_list || (encoded && (lengths > 0 || head.version() < 11 || codings.empty())))
    return kBadFraming;
  if (!encoded) return std::nullopt;
  if (!iequals(codings.back(), "chunked")) return kBadFraming;
  if (codings.size() > 1) {
    const bool known = std::all_of(codings.begin(), codings.end() - 1, [](std::string_view coding) {
      return iequals(coding, "gzip") || iequals(coding, "x-gzip") || iequals(coding, "deflate") ||
             iequals(coding, "compress") || iequals(coding, "x-compress");
    });
    if (known) return HttpProblem{501, "Transfer-Encoding: only chunked is supported", "unsupported_transfer_encoding"};
    return kBadFraming;
  }
  if (!chunked) return kBadFraming;
  return std::nullopt;
}

}  // namespace

std::optional<HttpProblem> check_head(const HttpHead& head, bool chunked) {
  if (const auto problem = check_framing(head, chunked)) return problem;
  const size_t hosts = head.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && head.version() >= 11)) {
    return HttpProblem{400, "Host: expected exactly one Host header", "bad_host"};
  }
  const auto host = head[http::field::host];
  if (!is_authority({host.data(), host.size()}))
    return HttpProblem{400, "Host: expected a host with an optional port", "bad_host"};
  if (head.version() >= 11) {
    for (const std::string_view member : members(head, http::field::expect)) {
      if (!iequals(member, "100-continue")) {
        return HttpProblem{417, "Expect: only 100-continue is supported", "unsupported_expectation"};
      }
    }
  }
  for (const std::string_view coding : members(head, http::field::content_encoding)) {
    if (!iequals(coding, "identity")) {
      return HttpProblem{415, "Content-Encoding: send the body uncompressed", "unsupported_content_encoding"};
    }
  }
  return std::nullopt;
}

bool expects_continue(const HttpHead& head) {
  // check_head() has already refused expectations other than "100-continue".
  return head.version() >= 11 && !members(head, http::field::expect).empty();
}

bool parse_target(std::string_view target, HttpRequest& request) {
  const auto invalid = [](char c) { return c == '#' || static_cast<unsigned char>(c) >= 0x80; };
  if (std::any_of(target.begin(), target.end(), invalid)) return false;
  if (target == "*") {
    request.path = "*";
    return request.method == "OPTIONS";
  }
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!iequals(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(scheme.size());
    const std::string_view authority = target.substr(0, target.find_first_of("/?"));
    if (authority.empty() || !is_authority(authority)) return false;
    target.remove_prefix(authority.size());
    if (!target.starts_with('/')) {
      const std::string with_path = "/" + std::string(target);
      return parse_target(with_path, request);
    }
    break;
  }
  if (!target.starts_with('/')) return false;
  const size_t question = target.find('?');
  if (question != std::string_view::npos) {
    request.query = target.substr(question + 1);
    target = target.substr(0, question);
  }
  request.path.clear();
  for (size_t i = 0; i < target.size(); ++i) {
    if (target[i] != '%') {
      request.path += target[i];
      continue;
    }
    const int byte = encoded_byte(target, i);
    if (byte <= 0) return false;
    if (is_unreserved(static_cast<char>(byte))) {
      request.path += static_cast<char>(byte);
    } else {
      request.path += target.substr(i, 3);
    }
    i += 2;
  }
  return true;
}

std::string percent_decoded(std::string_view text, bool plus_is_space) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (const int byte = text[i] == '%' ? encoded_byte(text, i) : -1; byte >= 0) {
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += plus_is_space && text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

std::optional<std::string> query_value(std::string_view query, std::string_view name) {
  std::optional<std::string> out;
  while (!query.empty()) {
    const size_t end = query.find('&');
    const std::string_view parameter = query.substr(0, end);
    const size_t equals = parameter.find('=');
    if (percent_decoded(parameter.substr(0, equals), true) == name) {
      out = equals == std::string_view::npos ? "" : percent_decoded(parameter.substr(equals + 1), true);
    }
    query.remove_prefix(end == std::string_view::npos ? query.size() : end + 1);
  }
  return out;
}

}  // namespace lazy::serve
