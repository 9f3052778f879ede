// Paired tests of two models on the same documents: Student's t-test and the bootstrap over documents.
#pragma once
#include <cstdint>
#include <vector>

#include "core/statistics.h"

namespace lazy::eval {

// The contribution of one document to a paired test. difference: value of the second model minus value of the first
// model. units: 1 for a metric per document, or the number of words of the document for a metric per word.
struct PairedDifference {
  double difference = 0, units = 1;
};

struct TTest {
  double t = 0, degrees = 0;
  double p = 1;  // two-sided p-value; NaN if there are too few documents
};

// The documents of each benchmark. mean_difference returns the estimate that the following functions test: the mean
// over benchmarks of (sum of differences / sum of units).
using PairedBenchmarks = std::vector<std::vector<PairedDifference>>;
double mean_difference(const PairedBenchmarks& benchmarks);

// Tests whether the estimate is zero. For one benchmark this is Student's t-test of the mean difference of the
// documents. For several benchmarks it is a test of their mean: the variance of each benchmark is estimated from its
// documents, with the degrees of freedom of Welch and Satterthwaite. p is 1 if all differences are zero, and 0 if every
// document has the same nonzero difference.
TTest paired_t_test(const PairedBenchmarks& benchmarks);

// Returns the bootstrap percentile interval of the estimate. Each resample draws the documents of each benchmark with
// replacement. The same seed gives the same interval on every machine.
ConfidenceInterval paired_bootstrap(const PairedBenchmarks& benchmarks, double confidence = 0.95,
                                    int64_t resamples = 10000, uint64_t seed = 42);

// Returns P(|T| >= |t|) of Student's t-distribution.
double student_two_sided(double t, double degrees);

}  // namespace lazy::eval
