#include "eval/compare/paired_test.h"

#include <boost/math/distributions/students_t.hpp>

#include <cmath>
#include <limits>
#include <random>

#include "core/statistics.h"

namespace lazy::eval {
namespace {

double sum_of_units(const std::vector<PairedDifference>& documents) {
  double units = 0;
  for (const auto& document : documents) units += document.units;
  return units;
}

// Returns a uniform random number in [0, count): the high 64 bits of the product of a random number and `count`.
// std::uniform_int_distribution is not used because its results differ between standard libraries.
size_t draw(std::mt19937_64& generator, size_t count) {
  return static_cast<size_t>((static_cast<unsigned __int128>(generator()) * count) >> 64);
}

}  // namespace

double student_two_sided(double t, double degrees) {
  if (std::isinf(t)) return 0;
  return 2 * boost::math::cdf(boost::math::complement(boost::math::students_t(degrees), std::abs(t)));
}

double mean_difference(const PairedBenchmarks& benchmarks) {
  double total = 0;
  for (const auto& documents : benchmarks) {
    double sum = 0;
    for (const auto& document : documents) sum += document.difference;
    total += sum / sum_of_units(documents);
  }
  return total / static_cast<double>(benchmarks.size());
}

TTest paired_t_test(const PairedBenchmarks& benchmarks) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  double mean = 0, variance = 0, denominator = 0;
  for (const auto& documents : benchmarks) {
    const auto n = static_cast<double>(documents.size());
    if (documents.size() < 2) return {kNaN, 0, kNaN};
    double document_mean = 0, squares = 0;
    for (const auto& document : documents) document_mean += document.difference / n;
    for (const auto& document : documents)
      squares += (document.difference - document_mean) * (document.difference - document_mean);
    // The estimate for a benchmark is sum of differences / sum of units. This is the mean difference of the documents
    // multiplied by the number of documents and divided by the sum of units.
    const double scale = n / sum_of_units(documents), of_mean = squares / (n - 1) / n * scale * scale;
    mean += document_mean * scale;
    variance += of_mean;
    denominator += of_mean * of_mean / (n - 1);
  }
  if (variance == 0) {
    if (mean == 0) return {0, 0, 1};
    return {std::copysign(std::numeric_limits<double>::infinity(), mean), 0, 0};
  }
  TTest test;
  test.t = mean / std::sqrt(variance);
  test.degrees = variance * variance / denominator;
  test.p = student_two_sided(test.t, test.degrees);
  return test;
}

ConfidenceInterval paired_bootstrap(const PairedBenchmarks& benchmarks, double confidence, int64_t resamples,
                                    uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<double> estimates(static_cast<size_t>(resamples), 0.0);
  for (const auto& documents : benchmarks) {
    const std::vector<double> draws = bootstrap_draws_from(generator, resamples, [&](std::mt19937_64&) {
      double sum = 0, units = 0;
      for (size_t i = 0; i < documents.size(); ++i) {
        const PairedDifference& document = documents[draw(generator, documents.size())];
        sum += document.difference;
        units += document.units;
      }
      return sum / units / static_cast<double>(benchmarks.size());
    });
    for (size_t r = 0; r < estimates.size(); ++r) estimates[r] += draws[r];
  }
  return central_interval(std::move(estimates), confidence);
}

}  // namespace lazy::eval
