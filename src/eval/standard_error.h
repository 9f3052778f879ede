// Standard errors as lm-evaluation-harness computes them, its bootstrap's random numbers included.
#pragma once
#include <cstdint>
#include <vector>

namespace lazy::eval {

// The sample standard deviation over sqrt(n); at least two values.
double mean_stderr(const std::vector<double>& values);
// Of exp(-mean): the standard deviation over resamples with replacement, 1,000 from each of random.Random(0),
// Random(1), ... Equal for any number of threads.
double perplexity_stderr(const std::vector<double>& log_likelihoods, int64_t resamples = 100'000);

}  // namespace lazy::eval
