// `lazy tokenize`: converts text to token ids and token ids to text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <iostream>
#include <iterator>

#include "command.h"
#include "model_path.h"

#include "core/error.h"
#include "core/file.h"
#include "data/tokenizer.h"

namespace lazy {
namespace {

struct TokenizeOptions {
  std::string tokenizer, input = "-";
  bool decode = false, count = false, download = false;
};

std::string read_all(const std::string& input) {
  if (input != "-") return read_file(input);
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

std::vector<int32_t> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    while (at < end && (std::isspace(static_cast<unsigned char>(*at)) || *at == ',')) ++at;
    if (at == end) return ids;
    int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc() || (next < end && !std::isspace(static_cast<unsigned char>(*next)) && *next != ',')) {
      const char* stop = at;
      while (stop < end && !std::isspace(static_cast<unsigned char>(*stop)) && stop - at < 40) ++stop;
      fail("tokenize", "expected ids (whole numbers), found \"{}\"", std::string(at, stop));
    }
    ids.push_back(id);
    at = next;
  }
}

void run(const TokenizeOptions& options) {
  const auto tokenizer = load_tokenizer(cli::resolve_tokenizer("tokenize", options.tokenizer, options.download));
  const std::string input = read_all(options.input);
  std::string out;
  if (options.decode) {
    out = tokenizer->decode(parse_ids(input));
    if (options.count) out = fmt::format("{}\n", out.size());
  } else {
    const std::vector<int32_t> ids = tokenizer->encode(input);
    out = options.count ? fmt::format("{}\n", ids.size()) : fmt::format("{}\n", fmt::join(ids, " "));
  }
  std::fwrite(out.data(), 1, out.size(), stdout);
  if (std::fflush(stdout) != 0) fail_run("tokenize", "cannot write to standard output");
}

}  // namespace

LAZY_COMMAND(tokenize, "Convert text to token ids, or token ids to text", [](CLI::App& command) {
  auto options = std::make_shared<TokenizeOptions>();
  command
      .add_option("--tokenizer", options->tokenizer,
                  "\"bytes\", a .model file, a tokenizer.json, or a folder that contains one")
      ->required();
  cli::add_download_option(command, options->download);
  command.add_option("input", options->input, "File to read (default: standard input)");
  command.add_flag("--decode", options->decode, "Convert ids to text");
  command.add_flag("--count", options->count, "Print only the number of ids (with --decode: of bytes)");
  command.footer(
      "Examples:\n"
      "  echo -n 'Hello world' | lazy tokenize --tokenizer model/\n"
      "  echo 15043 3186 | lazy tokenize --tokenizer tokenizer.model --decode\n"
      "  lazy tokenize --tokenizer bytes --count corpus.txt");
  command.callback([options] { run(*options); });
});

}  // namespace lazy
