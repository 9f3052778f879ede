#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "ops/rows.h"
#include "serve/engine_impl.h"

namespace lazy {

namespace {

constexpr int64_t kHeadRows = 64;  // maximum number of prompt tokens whose logits are in memory at the same time

// While an instance of this class exists, small models decode on one thread. The matrix products of one token take only
// microseconds; synchronizing with a second thread costs as much time as it saves, and far more on a busy machine.
class DecodeThreads {
 public:
  explicit DecodeThreads(const LanguageModel& model) : before_(at::get_num_threads()) {
    constexpr int64_t kSmall = 8'000'000;  // number of parameters: 32 MB in fp32, about one core's share of the caches
    if (model.device().is_cpu() && count_parameters(model.config()).total <= kSmall) at::set_num_threads(1);
  }
  ~DecodeThreads() {
    if (at::get_num_threads() != before_) at::set_num_threads(before_);
  }
  DecodeThreads(const DecodeThreads&) = delete;
  DecodeThreads& operator=(const DecodeThreads&) = delete;

 private:
  int before_;
};

// Returns the parameters for sampling the n-th generated token of a sequence on the device.
ops::SampleRow sample_row(const SamplingOptions& o, int64_t n) {
  return {.temperature = static_cast<float>(o.temperature),
          .top_k = o.top_k,
          .top_p = static_cast<float>(o.top_p),
          .min_p = static_cast<float>(o.min_p),
          .seed = o.seed,
          .draw = n,
          .adjusted =
              o.repetition_penalty != 1 || o.presence_penalty != 0 || o.frequency_penalty != 0 || !o.logit_bias.empty(),
          .repetition_penalty = static_cast<float>(o.repetition_penalty),
          .presence_penalty = static_cast<float>(o.presence_penalty),
          .frequency_penalty = static_cast<float>(o.frequency_penalty)};
}

// Returns the log-probability of token `id` from the logits at its position. `likely` is the number of most likely
// tokens to report.
ScoredToken score(std::span<float> logits, int64_t id, int likely) {
  const auto logit = [&](int64_t token) { return logits[static_cast<size_t>(token)]; };
  const float lse =
      logit(id) - ops::rows::cross_entropy(logits.data(), static_cast<int64_t>(logits.size()), id, 0).log_prob;
  ScoredToken out{.id = id, .logprob = logit(id) - lse};
  const auto likelier = [&](int64_t a, int64_t b) { return logit(a) != logit(b) ? logit(a) > logit(b) : a < b; };
  std::vector<int64_t> best;  // heap whose front element is the least likely token
  const size_t kept = std::min(logits.size(), static_cast<size_t>(std::max(likely, 0)));
  for (int64_t token = 0; kept > 0 && token < static_cast<int64_t>(logits.size()); ++token) {
    if (best.size() == kept) {
      if (!likelier(token, best.front())) continue;
      std::pop_heap(best.begin(), best.end(), likelier);
      best.pop_back();
    }
    best.push_back(token);
    std::push_heap(best.begin(), best.end(), likelier);
  }
  std::sort_heap(best.begin(), best.end(), likelier);
  for (const int64_t token : best) out.likely.emplace_back(token, logit(token) - lse);
  return out;
}

std::span<float> row(const at::Tensor& logits, int64_t n) {
  const auto size = static_cast<size_t>(logits.size(-1));
  return {logits.mutable_data_ptr<float>() + n * logits.size(-1), size};
}

}  // namespace

void Engine::Impl::read_prompts() {
  const KvCacheManager::PassSize most = store->pass_size();
  std::vector<Sequence*> readers, owners;  // owners[n] is the sequence of parts[n]
  std::vector<KvCacheManager::PromptPart> parts;
  int64_t room = most.tokens, ends = 0;
  bool scored = false;
  for (const auto& sequence : active) {
    Sequence& s = *sequence;
    if (s.ended || !s.in_prompt()) continue;
    if (readers.empty()) scored = s.wants_prompt();
    if (room == 0 || parts.size() >= most.parts || ends == most.ends || s.wants_prompt() != scored) break;
    readers.push_back(&s);
    const std::span<const int64_t> prompt = std::span(s.ids).first(static_cast<size_t>(s.to_read));
    if (!scored) {
      const int64_t reused = store->reuse(*s.memory, prompt, s.computed);
      s.computed += reused;
      counts.reused_tokens += reused;
    }
    for (int64_t at = s.computed; at < s.to_read && parts.size() < most.parts; at += options.chunk) {
      const int64_t count = std::min(options.chunk, s.to_read - at);
      if (count > room) {
        room = 0;
        break;
      }
      parts.push_back({s.memory.get(), prompt, at});
      owners.push_back(&s);
      room -= count;
      ends += at + count == s.to_read;
    }
  }
  guarded(readers, [&](auto&) {
    if (parts.empty()) return;
    const std::vector<KvCacheManager::Extended> extended = store->extend(parts, /*last_tokens_only=*/!scored);
    std::vector<Sequence*> begun;
    std::vector<at::Tensor> last;
    for (size_t n = 0; n < parts.size(); ++n) {
      Sequence& s = *owners[n];
      const auto& [tokens, hidden] = extended[n];
      if (scored) score_prompt(s, hidden);
      s.computed += tokens;
      const int64_t read = std::min(s.computed, s.prompt_size());
      counts.prompt_tokens += std::max<int64_t>(0, read - std::max(s.prompt_read, s.computed - tokens));
      s.prompt_read = std::max(s.prompt_read, read);
      if (s.in_prompt()) continue;
      if (scored) s.receiver->on_prompt(s.prompt);
      s.prompt_sent = scored || s.prompt_sent;
      if (s.request.max_tokens <= 0) {
        end(s, FinishReason::length);
        continue;
      }
      if (s.slot >= 0 && sample_row(s.request.sampling, 0).adjusted) {
        guarded({&s}, [&](auto&) { store->decode_runner()->begin_adjusted(s.slot, s.seen, s.request.sampling); });
        if (s.ended) continue;
      }
      begun.push_back(&s);
      last.push_back(hidden.narrow(0, hidden.size(0) - 1, 1));
    }
    begin_texts(begun, last);
  });
}

void Engine::Impl::begin_texts(const std::vector<Sequence*>& begun, const std::vector<at::Tensor>& last) {
  if (DecodeRunner* device = store->decode_runner()) {
    for_rows(begun, [&](const std::vector<Sequence*>& some, size_t first) {
      const at::Tensor hidden = at::cat(at::TensorList(last).slice(first, some.size()));
      queue(some, [&](const auto& rows) { return device->begin(hidden, rows); });
    });
    return;
  }
  for (size_t n = 0; n < begun.size(); ++n) {
    const at::Tensor logits = model.logits(last[n]).to(at::kCPU).contiguous();
    accept(*begun[n], row(logits, 0));
  }
}

template <typename Work>
void Engine::Impl::for_rows(const std::vector<Sequence*>& all, const Work& work) {
  const auto most = static_cast<size_t>(store->decode_runner()->most_rows());
  for (size_t first = 0; first < all.size(); first += most) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
    work(std::vector<Sequence*>(begin, begin + static_cast<std::ptrdiff_t>(std::min(most, all.size() - first))), first);
  }
}

template <typename Work>
void Engine::Impl::queue(const std::vector<Sequence*>& some, const Work& work) {
  guarded(some, [&](auto& all) {
    std::vector<DecodeRunner::DecodeRow> rows;
    for (const Sequence* s : all) {
      rows.push_back({store->pages(*s->memory), s->computed, s->slot, sample_row(s->request.sampling, s->sampled),
                      s->request.logprobs});
    }
    Queued step{work(rows), {}};
    for (Sequence* s : all) {
      ++s->sampled;
      step.sequences.push_back(s->shared_from_this());
    }
    queued.push_back(std::move(step));
  });
}

void Engine::Impl::queue_steps(std::vector<Sequence*> texts) {
  const DecodeThreads threads(model);
  std::erase_if(texts, [](const Sequence* s) { return s->sampled >= s->request.max_tokens; });
  for_rows(texts, [&](const std::vector<Sequence*>& some, size_t) {
    queue(some, [&](const auto& rows) { return store->decode_runner()->step(rows); });
    for (Sequence* s : some) ++s->computed;
  });
}

void Engine::Impl::receive(size_t left) {
  while (queued.size() > left) {
    Queued step = std::move(queued.front());
    queued.pop_front();
    unread -= unread > 0 ? 1 : 0;
    for (size_t n = 0; n < step.sequences.size(); ++n) {
      Sequence& s = *step.sequences[n];
      if (s.ended) continue;
      guarded({&s}, [&](auto&) {
        const ScoredToken token = step.result->token(n);
        if (token.id < 0) fail_run("generate", "the model's logits are NaN or infinite: its weights have diverged");
        take(s, token);
      });
    }
  }
}

void Engine::Impl::score_prompt(Sequence& s, const at::Tensor& hidden) {
  const int likely = std::max(s.request.logprobs, 0);
  if (s.computed == 0) {
    s.prompt.push_back({.id = s.ids.front(), .logprob = std::numeric_limits<float>::quiet_NaN(), .likely = {}});
  }
  // Each hidden state predicts the next token. The state of the last prompt token is not scored, because the token that
  // follows it is generated.
  const int64_t count = std::min(hidden.size(0), s.prompt_size() - 1 - s.computed);
  for (int64_t begin = 0; begin < count; begin += kHeadRows) {
    const at::Tensor logits =
        model.logits(hidden.narrow(0, begin, std::min(kHeadRows, count - begin))).to(at::kCPU).contiguous();
    const auto first = static_cast<int64_t>(s.prompt.size());
    s.prompt.resize(static_cast<size_t>(first + logits.size(0)));
    at::parallel_for(0, logits.size(0), 1, [&](int64_t from, int64_t to) {
      for (int64_t n = from; n < to; ++n) {
        const int64_t id = s.ids[static_cast<size_t>(s.computed + begin + n + 1)];
        s.prompt[static_cast<size_t>(first + n)] = score(row(logits, n), id, likely);
      }
    });
  }
}

void Engine::Impl::continue_texts(const std::vector<Sequence*>& texts) {
  const DecodeThreads threads(model);
  std::vector<KvCacheManager::SequenceStep> steps;
  for (Sequence* s : texts) steps.push_back({s->memory.get(), s->ids});
  const at::Tensor logits = store->step(steps).to(at::kCPU).contiguous();
  for (size_t n = 0; n < texts.size(); ++n) {
    ++texts[n]->computed;
    guarded({texts[n]}, [&](auto& some) { accept(*some.front(), row(logits, static_cast<int64_t>(n))); });
  }
}

void Engine::Impl::accept(Sequence& s, std::span<float> logits) {
  const int64_t id = s.sampler.sample(logits, s.seen);
  ++s.seen[id].text;
  take(s, s.request.logprobs < 0
              ? ScoredToken{.id = id, .logprob = std::numeric_limits<float>::quiet_NaN(), .likely = {}}
              : score(logits, id, s.request.logprobs));
}

void Engine::Impl::take(Sequence& s, const ScoredToken& token) {
  s.ids.push_back(token.id);
  ++counts.generated_tokens;
  const std::vector<int64_t>& stops = s.request.stop_tokens;
  const bool stop = std::find(stops.begin(), stops.end(), token.id) != stops.end();
  if (!s.receiver->on_token(token, stop) || stop) return end(s, FinishReason::stop);
  if (static_cast<int64_t>(s.ids.size()) - s.prompt_size() >= s.request.max_tokens) end(s, FinishReason::length);
}

}  // namespace lazy
